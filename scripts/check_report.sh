#!/bin/sh
# check_report.sh -- a report as a browser shows it: is every chart there, and can it be read, on a screen in light and in
#                    dark, on a phone, and printed?
#
#   fails on   a script error or console message, a request to anywhere, a chart that is empty, has no label or reaches beyond
#              the page, text smaller than 8 pixels, text whose contrast with the page is below 4.5
#
# Usage    sh scripts/check_report.sh OUT [PICTURES]    OUT holds report.html; pictures go to PICTURES, or OUT/screenshots
# Needs    chromium and python3
# Status   0: all is well; 1: it is not, or chromium is missing
set -u
[ -f "${1:-}/report.html" ] || { echo "usage: sh scripts/check_report.sh OUT [PICTURES]: ${1:-OUT}/report.html is not there"; exit 1; }
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    { echo "no chromium here: install the Debian package chromium"; exit 1; }
command -v python3 >/dev/null || { echo "no python3 here: install the Debian package python3"; exit 1; }
mkdir -p "${2:-$1/screenshots}" || exit 1
exec python3 - "$browser" "$1/report.html" "${2:-$1/screenshots}" <<'PYTHON'
import base64, json, os, pathlib, shutil, subprocess, sys, tempfile

browser, page, pictures = sys.argv[1], pathlib.Path(sys.argv[2]).resolve().as_uri(), pathlib.Path(sys.argv[3])
faults = []

# What the page itself can tell: run in it, returns a list of sentences.
LOOK = r"""(() => {
  const faults = [], seen = new Set(), width = document.documentElement.clientWidth;
  const say = text => { if (!seen.has(text)) seen.add(text), faults.push(text); };
  if (document.documentElement.scrollWidth > width) say(`the page is ${document.documentElement.scrollWidth} pixels wide, the window ${width}`);
  for (const id of ['loss', 'numbers', 'updates', 'claims', 'costs']) if (!document.getElementById(id)) say(`there is no section ${id}`);
  for (const details of document.querySelectorAll('details')) details.open = true;
  const charts = [...document.querySelectorAll('svg[role=img]')];
  if (!charts.length) say('there is no chart');
  for (const chart of charts) {
    const name = chart.getAttribute('aria-label') || '', box = chart.getBoundingClientRect();
    if (name.length < 5) say('a chart has no label');
    if (box.width < 200 || box.height < 20) say(`${name}: ${box.width} x ${box.height} pixels`);
    if (box.right > width + 1) say(`${name} reaches beyond the page`);
    const ink = [...chart.querySelectorAll('path,rect')].filter(e => { const b = e.getBBox(); return b.width > 0 || b.height > 0; });
    if (ink.length < 3) say(`${name}: empty`);
    for (const text of chart.querySelectorAll('text')) {
      const b = text.getBoundingClientRect();
      if (b.height < 8) say(`${name}: '${text.textContent}' is ${b.height.toFixed(1)} pixels high`);
      if (b.right > box.right + 2 || b.left < box.left - 2) say(`${name}: '${text.textContent}' is cut off`);
    }
  }
  for (const e of document.querySelectorAll('*'))
    for (const a of e.attributes) if (/^(d|x|y|width|height|viewBox|transform)$/.test(a.name) && /nan|inf|undefined/i.test(a.value)) say(`<${e.tagName} ${a.name}> holds ${a.value.slice(0, 40)}`);
  const light = c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  for (const e of document.querySelectorAll('h1,h2,h3,p,b,i,td,th,li,summary,text')) {
    const style = getComputedStyle(e), ink = light(e.tagName == 'text' ? style.fill : style.color);
    const contrast = (Math.max(ink, ground) + .05) / (Math.min(ink, ground) + .05);
    if (contrast < 4.5) say(`<${e.tagName}> '${e.textContent.slice(0, 20)}': contrast ${contrast.toFixed(1)}`);
  }
  document.querySelectorAll('details').forEach((details, i) => details.open = details.dataset.open !== undefined);
  return faults;
})()"""

profile = tempfile.mkdtemp()
to_it, from_it = os.pipe(), os.pipe()

def connect(): # in the browser's process: it reads 3 and writes 4
    for end, fd in ((to_it[0], 100), (from_it[1], 101), (100, 3), (101, 4)): os.dup2(end, fd)

process = subprocess.Popen([browser, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars', '--no-first-run', '--disable-background-networking',
                            f'--user-data-dir={profile}', '--remote-debugging-pipe', 'about:blank'], preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.close(to_it[0]), os.close(from_it[1])
rest, number, session, events = b'', 0, None, []

def receive():
    global rest
    while b'\0' not in rest:
        more = os.read(from_it[0], 1 << 20)
        if not more: sys.exit('chromium ended before it answered')
        rest += more
    message, rest = rest.split(b'\0', 1)
    return json.loads(message)

def call(method, **params):
    global number
    number += 1
    message = {'id': number, 'method': method, 'params': params}
    if session: message['sessionId'] = session
    os.write(to_it[1], json.dumps(message).encode() + b'\0')
    while True:
        answer = receive()
        if answer.get('id') == number:
            if 'error' in answer: sys.exit(f'{method}: {answer["error"]["message"]}')
            return answer['result']
        events.append(answer)

def run(script):
    answer = call('Runtime.evaluate', expression=script, returnByValue=True)
    if 'exceptionDetails' in answer: sys.exit(f'in the page: {answer["exceptionDetails"]["exception"]["description"]}')
    return answer['result'].get('value')

try:
    target = call('Target.createTarget', url='about:blank')['targetId']
    session = call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
    for domain in ('Page', 'Runtime', 'Log', 'Network'): call(f'{domain}.enable')
    call('Page.navigate', url=page)
    while run('document.readyState') != 'complete' or run('location.protocol') != 'file:': pass
    run("document.querySelectorAll('details').forEach(d => { if (d.open) d.dataset.open = '' })")
    for name, width, media, scheme in (('light', 1280, 'screen', 'light'), ('dark', 1280, 'screen', 'dark'), ('phone', 390, 'screen', 'light'), ('print', 794, 'print', 'dark')):
        call('Emulation.setEmulatedMedia', media=media, features=[{'name': 'prefers-color-scheme', 'value': scheme}])
        call('Emulation.setDeviceMetricsOverride', width=width, height=900, deviceScaleFactor=1 if width > 500 else 2, mobile=False)
        faults += [f'{name}: {fault}' for fault in run(LOOK)]
        height = min(run('document.documentElement.scrollHeight'), 8000)
        shot = call('Page.captureScreenshot', captureBeyondViewport=True, clip={'x': 0, 'y': 0, 'width': width, 'height': height, 'scale': 1})
        (pictures / f'{name}.png').write_bytes(base64.b64decode(shot['data']))
    call('Emulation.setEmulatedMedia', media='', features=[])
    (pictures / 'print.pdf').write_bytes(base64.b64decode(call('Page.printToPDF', printBackground=False)['data']))
    for event in events:
        params = event.get('params', {})
        if event['method'] in ('Runtime.exceptionThrown', 'Runtime.consoleAPICalled', 'Log.entryAdded'): faults.append(f'console: {json.dumps(params)[:200]}')
        if event['method'] == 'Network.requestWillBeSent' and params['request']['url'] != page: faults.append(f'the page asks for {params["request"]["url"]}')
    charts = run("document.querySelectorAll('svg[role=img]').length")
finally:
    process.terminate()
    process.wait()
    shutil.rmtree(profile, ignore_errors=True)

for fault in faults[:20]: print(fault)
print(f'{charts} charts, each in light, dark, on a phone and in print: {len(faults)} faults; pictures in {pictures}')
sys.exit(len(faults) > 0)
PYTHON
