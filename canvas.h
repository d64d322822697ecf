// canvas.h -- lines and letters on a grid of pixels, and the PNG of it.
//
//   coverage of a pixel = clamp(thickness / 2 + 1/2 - distance from its centre to the nearest segment, 0, 1)
//
// Source   A. V. Hershey 1967, "Calligraphy for computers", National Bureau of Standards: the letters. This encoding of
//          them is James Hurt's (Cognition, Inc., 900 Technology Park Drive, Billerica, MA 01821).
//          S. Barrett, stb_image_write.h: the PNG encoder
// Units    pixels from the top left corner, y downwards; the centre of the first pixel is (0.5, 0.5)
// Why      These letters are strokes, as curves are: the one formula above draws everything in a picture, and it comes
//          out the same on a machine that has no fonts.
// Tests    tests/test_plot.cu
#pragma once
#include "files.h"
#include "gpu.cuh"

#define STB_IMAGE_WRITE_STATIC // each file that includes this one gets an encoder of its own
#define STB_IMAGE_WRITE_IMPLEMENTATION
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wimplicit-fallthrough"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#if __has_include(<stb/stb_image_write.h>)
#include <stb/stb_image_write.h>
#else
#include <stb_image_write.h>
#endif
#pragma GCC diagnostic pop

// ==== strokes ========================================================================================================

struct Point {
    double x, y;
};
using Path = std::vector<Point>; // its points joined by straight lines; one point is a dot
using Colour = unsigned;         // 0xRRGGBB
constexpr Colour INK = 0x262626, WHITE = 0xFFFFFF;

// `share` of the way from one colour to another.
inline Colour mix(Colour from, Colour to, double share) {
    Colour mixed = 0;
    for (int shift : {16, 8, 0}) {
        int a = from >> shift & 255, b = to >> shift & 255;
        mixed |= (Colour)std::lround(a + (b - a) * share) << shift;
    }
    return mixed;
}

struct Box {
    double left, top, right, bottom;
};

struct Canvas {
    int width, height;
    std::vector<Colour> pixels;
    std::vector<float> coverage; // by the stroke that is being drawn
    Canvas(int width, int height)
        : width(width), height(height), pixels((size_t)width * height, WHITE), coverage(pixels.size()) {}

    // Draws all the paths at once: where they cross or overlap, no ink is added. Nothing is drawn outside `clip`.
    void stroke(const std::vector<Path>& paths, double thickness, Colour colour,
                Box clip = {0, 0, INFINITY, INFINITY}) {
        std::fill(coverage.begin(), coverage.end(), 0.f);
        for (const Path& path : paths)
            for (size_t i = 0; i < path.size(); i++)
                if (i > 0 || path.size() == 1) cover(path[i > 0 ? i - 1 : 0], path[i], thickness / 2 + 0.5, clip);
        for (size_t i = 0; i < pixels.size(); i++)
            if (coverage[i] > 0) pixels[i] = mix(pixels[i], colour, coverage[i]);
    }

  private:
    // coverage = max(coverage, clamp(reach - distance to the segment ab, 0, 1))
    void cover(Point a, Point b, double reach, Box clip) {
        int left = (int)std::max(clip.left, std::min(a.x, b.x) - reach);
        int top = (int)std::max(clip.top, std::min(a.y, b.y) - reach);
        double right = std::min({clip.right, (double)width, std::max(a.x, b.x) + reach});
        double bottom = std::min({clip.bottom, (double)height, std::max(a.y, b.y) + reach});
        double dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
        for (int y = top; y < bottom; y++)
            for (int x = left; x < right; x++) {
                double px = x + 0.5 - a.x, py = y + 0.5 - a.y;
                double t = length2 > 0 ? std::clamp((px * dx + py * dy) / length2, 0.0, 1.0) : 0;
                float c = (float)std::clamp(reach - std::hypot(px - t * dx, py - t * dy), 0.0, 1.0);
                float& old = coverage[(size_t)y * width + x];
                old = std::max(old, c);
            }
    }
};

// ==== letters ========================================================================================================

// Hershey's simplex letters, ASCII 32 to 126, each ended by '|'; the space is narrower here and . , : ; stand lower.
// A glyph is pairs of characters, each character c the number c - 'R': first its left and right edge, then x, y of its
// points; " R" lifts the pen. Capitals are 21 units high, on a base line at y = 9.
constexpr char HERSHEY[] = R"(
LX|MWRFRT RRYQZR[SZRY|JZNFNM RVFVM|H]SBLb RYBRb RLOZO RKUYU|H\PBP_ RTBT_ RYIWGTFPFMGKIKKLMMNOOUQWRXSYUYXWZT[P[MZKX|F^
[FI[ RNFPHPJOLMMKMIKIIJGLFNFPGSHVHYG[F RWTUUTWTYV[X[ZZ[X[VYTWT|E_\O\N[MZMYNXPVUTXRZP[L[JZIYHWHUISJRQNRMSKSIRGPFNGMIMK
NNPQUXWZY[[[\Z\Y|MWRHQGRFSGSIRKQL|KYVBTDRGPKOPOTPYR]T`Vb|KYNBPDRGTKUPUTTYR]P`Nb|JZRLRX RMOWU RWOMU|E_RIR[ RIR[R|NVSZR
[QZRYSZS\Q_|E_IR[R|NVRYQZR[SZRY|G][BIb|H\QFNGLJKOKRLWNZQ[S[VZXWYRYOXJVGSFQF|H\NJPISFS[|H\LKLJMHNGPFTFVGWHXJXLWNUQK[Y[
|H\MFXFRNUNWOXPYSYUXXVZS[P[MZLYKW|H\UFKTZT RUFU[|H\WFMFLOMNPMSMVNXPYSYUXXVZS[P[MZLYKW|H\XIWGTFRFOGMJLOLTMXOZR[S[VZXXY
UYTXQVOSNRNOOMQLT|H\YFO[ RKFYF|H\PFMGLILKMMONSOVPXRYTYWXYWZT[P[MZLYKWKTLRNPQOUNWMXKXIWGTFPF|H\XMWPURRSQSNRLPKMKLLINGQ
FRFUGWIXMXRWWUZR[P[MZLX|NVRNQORPSORN RRYQZR[SZRY|NVRNQORPSORN RSZR[QZRYSZS\Q_|F^ZIJRZ[|E_IO[O RIU[U|F^JIZRJ[|I[LKLJMH
NGPFTFVGWHXJXLWNVORQRT RRYQZR[SZRY|E`WNVLTKQKOLNMMPMSNUPVSVUUVS RQKOMNPNSOUPV RWKVSVUXVZV\T]Q]O\L[JYHWGTFQFNGLHJJILHO
HRIUJWLYNZQ[T[WZYYZX RXKWSWUXV|I[RFJ[ RRFZ[ RMTWT|G\KFK[ RKFTFWGXHYJYLXNWOTP RKPTPWQXRYTYWXYWZT[K[|H]ZKYIWGUFQFOGMILK
KNKSLVMXOZQ[U[WZYXZV|G\KFK[ RKFRFUGWIXKYNYSXVWXUZR[K[|H[LFL[ RLFYF RLPTP RL[Y[|HZLFL[ RLFYF RLPTP|H]ZKYIWGUFQFOGMILKK
NKSLVMXOZQ[U[WZYXZVZS RUSZS|G]KFK[ RYFY[ RKPYP|NVRFR[|JZVFVVUYTZR[P[NZMYLVLT|G\KFK[ RYFKT RPOY[|HYLFL[ RL[X[|F^JFJ[ R
JFR[ RZFR[ RZFZ[|G]KFK[ RKFY[ RYFY[|G]PFNGLIKKJNJSKVLXNZP[T[VZXXYVZSZNYKXIVGTFPF|G\KFK[ RKFTFWGXHYJYMXOWPTQKQ|G]PFNGL
IKKJNJSKVLXNZP[T[VZXXYVZSZNYKXIVGTFPF RSWY]|G\KFK[ RKFTFWGXHYJYLXNWOTPKP RRPY[|H\YIWGTFPFMGKIKKLMMNOOUQWRXSYUYXWZT[P[
MZKX|JZRFR[ RKFYF|G]KFKULXNZQ[S[VZXXYUYF|I[JFR[ RZFR[|F^HFM[ RRFM[ RRFW[ R\FW[|H\KFY[ RYFK[|I[JFRPR[ RZFRP|H\YFK[ RKF
YF RK[Y[|KYOBOb RPBPb ROBVB RObVb|KYKFY^|KYTBTb RUBUb RNBUB RNbUb|JZRDJR RRDZR|I[Ib[b|NVSKQMQORPSORNQO|I\XMX[ RXPVNTM
QMONMPLSLUMXOZQ[T[VZXX|H[LFL[ RLPNNPMSMUNWPXSXUWXUZS[P[NZLX|I[XPVNTMQMONMPLSLUMXOZQ[T[VZXX|I\XFX[ RXPVNTMQMONMPLSLUMX
OZQ[T[VZXX|I[LSXSXQWOVNTMQMONMPLSLUMXOZQ[T[VZXX|MYWFUFSGRJR[ ROMVM|I\XMX]W`VaTbQbOa RXPVNTMQMONMPLSLUMXOZQ[T[VZXX|I\M
FM[ RMQPNRMUMWNXQX[|NVQFRGSFREQF RRMR[|MWRFSGTFSERF RSMS^RaPbNb|IZMFM[ RWMMW RQSX[|NVRFR[|CaGMG[ RGQJNLMOMQNRQR[ RRQU
NWMZM\N]Q][|I\MMM[ RMQPNRMUMWNXQX[|I\QMONMPLSLUMXOZQ[T[VZXXYUYSXPVNTMQM|H[LMLb RLPNNPMSMUNWPXSXUWXUZS[P[NZLX|I\XMXb R
XPVNTMQMONMPLSLUMXOZQ[T[VZXX|KXOMO[ ROSPPRNTMWM|J[XPWNTMQMNNMPNRPSUTWUXWXXWZT[Q[NZMX|MYRFRWSZU[W[ ROMVM|I\MMMWNZP[S[U
ZXW RXMX[|JZLMR[ RXMR[|G]JMN[ RRMN[ RRMV[ RZMV[|J[MMX[ RXMM[|JZLMR[ RXMR[P_NaLbKb|J[XMM[ RMMXM RM[X[|KYTBRCQDPFPHQJRK
SMSOQQ RRCQEQGRISJTLTNSPORSTTVTXSZR[Q]Q_Ra RQSSUSWRYQZP\P^Q`RaTb|NVRBRb|KYPBRCSDTFTHSJRKQMQOSQ RRCSESGRIQJPLPNQPURQTP
VPXQZR[S]S_Ra RSSQUQWRYSZT\T^S`RaPb|F^IUISJPLONOPPTSVTXTZS[Q RISJQLPNPPQTTVUXUZT[Q[O|
)";

// The strokes of a text whose capitals are `height` pixels high, from (0, 0) to the right, and its length.
struct Text {
    std::vector<Path> paths;
    double length = 0;
    Text(const std::string& text, double height) {
        static const std::vector<std::string> glyphs = [] {
            std::vector<std::string> list(1);
            for (char c : HERSHEY)
                if (c == '|') list.emplace_back();
                else if (c != '\n') list.back() += c;
            return list;
        }();
        const double unit = height / 21;
        for (char letter : text) {
            const std::string& glyph = glyphs[letter >= ' ' && letter <= '~' ? letter - ' ' : '?' - ' '];
            paths.emplace_back();
            for (size_t i = 2; i + 1 < glyph.size(); i += 2)
                if (glyph[i] == ' ') paths.emplace_back();
                else paths.back().push_back({length + (glyph[i] - glyph[0]) * unit, (glyph[i + 1] - 'R' - 9) * unit});
            length += (glyph[1] - glyph[0]) * unit;
        }
    }
};

// Writes along `direction`, with the start (anchor 0), middle (0.5) or end (1) of the base line at `at`; smaller where
// the text is longer than `room`.
inline void write_text(Canvas& canvas, const std::string& text, Point at, double anchor, double height, double room,
                       Point direction = {1, 0}) {
    double length = Text(text, height).length;
    if (length > room) height *= room / length;
    Text letters(text, height);
    for (Path& path : letters.paths)
        for (Point& p : path) {
            double along = p.x - anchor * letters.length;
            p = {at.x + along * direction.x - p.y * direction.y, at.y + along * direction.y + p.y * direction.x};
        }
    canvas.stroke(letters.paths, height * 0.13, INK);
}

// ==== the file =======================================================================================================

inline void save_png(const std::string& path, const Canvas& canvas) {
    std::string rgb, png;
    for (Colour pixel : canvas.pixels)
        for (int shift : {16, 8, 0}) rgb += (char)(pixel >> shift & 255);
    auto append = [](void* to, void* bytes, int n) { ((std::string*)to)->append((const char*)bytes, n); };
    stbi_write_png_to_func(append, &png, canvas.width, canvas.height, 3, rgb.data(), 3 * canvas.width);
    write_whole(path, png);
}
