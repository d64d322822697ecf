// fuzz_checkpoint.cpp -- checkpoint.h on a checkpoint that was tampered with: refused in one line, or a run can go on from it.
//
//   first byte   0  the rest is state.safetensors
//                1  the rest changes words of its policy tables: 2 bytes which, 4 bytes what, again and again
//                2  the rest is its "progress", with the right hash
//                3  the rest is its "options", with the right hash                  (modulo 4)
//
//   clang++ -x c++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wno-unknown-pragmas -I. fuzz/fuzz_checkpoint.cpp -ldnnl -o build/fuzz_checkpoint
//   build/fuzz_checkpoint -max_len=4096 CORPUS fuzz/corpus/checkpoint            what is new goes to CORPUS, an empty folder
//
// Found    anything that is no Error of status 2, a crash and a leak included; and a step that is not made of what was accepted
#include "checkpoint.h"
#include "training.cuh"

namespace fs = std::filesystem;

static void require(bool good) {
    if (!good) abort();
}

static Config options() {
    Config c;
    c.recipe = "fp8", c.layers = 1, c.heads = 1, c.channels = 4, c.context = 4, c.batch = 1, c.shadow_every = 1, c.masters = "measured";
    return c;
}

// A tiny FP8 run that has made two steps, saved; and a model to load into, whose memory is made once.
struct Run {
    Config c = options();
    GPT<bf16> gpt{{1, 1, 4, 4, 256}, recipe_fp8, 1, 4};
    Tokens tokens{std::string("what a tiny model reads")};
    fs::path out;
    std::string state; // the file's bytes
    StringMap metadata;

    StepResult step() {
        LossScale scale = LossScale::fixed(1);
        Progress at;
        return train_step(gpt, scale, at, tokens, c);
    }
    Run() {
        std::string pattern = (fs::temp_directory_path() / "fewbits_fuzz_XXXXXX").string();
        require(mkdtemp(&pattern[0]));
        out = pattern;
        gpt.initialise(1), gpt.rules = rules_of(c), gpt.drop_masters(false, 1);
        step(), step();
        save_checkpoint(out, 1, gpt, Json::object(), c, "bytes", {});
        std::ifstream file(file_of_state(), std::ios::binary);
        state.assign(std::istreambuf_iterator<char>(file), {});
        metadata = SafeTensors(file_of_state()).metadata();
    }
    ~Run() { fs::remove_all(out); }
    std::string file_of_state() const { return (checkpoint_at(out, 1) / "state.safetensors").string(); }

    // The state's bytes with another text in its metadata.
    std::string with(const char* what, const std::string& text) {
        const std::string path = (out / "other").string();
        StringMap changed = metadata;
        changed[what] = text, changed["hash"] = hash_of(changed);
        const SafeTensors old("state", state.data(), state.size());
        std::vector<TensorEntry> tensors;
        for (const std::string& name : old.names()) tensors.push_back(old.at(name));
        SafeTensorsWriter file(path, tensors, changed);
        for (const std::string& name : old.names()) file.write(old.bytes(name).first, old.bytes(name).second);
        file.commit();
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
};

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
    static Run run;
    if (size == 0) return 0;
    const std::string rest((const char*)input + 1, size - 1);
    try {
        std::string bytes = rest;
        if (input[0] % 4 == 1) {
            bytes = run.state;
            const SafeTensors file("state", bytes.data(), bytes.size());
            const size_t begin = file.bytes("policy.tensors").first - (const uint8_t*)bytes.data();
            const size_t words = (file.bytes("policy.tensors").second + file.bytes("policy.parameters").second) / 4;
            for (size_t i = 0; i + 6 <= rest.size(); i += 6) memcpy(&bytes[begin + ((uint8_t)rest[i] | (uint8_t)rest[i + 1] << 8) % words * 4], &rest[i + 2], 4);
        }
        try {
            if (input[0] % 4 == 2) bytes = run.with("progress", rest);
            if (input[0] % 4 == 3) bytes = run.with("options", rest);
        } catch (const Error&) { // no text that a header can hold
            return 0;
        }
        std::ofstream(run.file_of_state(), std::ios::binary) << bytes;
        rules_of(open_checkpoint(checkpoint_at(run.out, 1)).options);
        load_checkpoint(checkpoint_at(run.out, 1), run.gpt);
    } catch (const Error& e) {
        require(e.status == 2 && !strchr(e.what(), '\n') && strlen(e.what()) < 1000);
        return 0;
    }
    try {
        require(std::isfinite(run.step().lr));
    } catch (const Error& e) { // the run may have to stop
        require(e.status == 1);
    }
    return 0;
}
