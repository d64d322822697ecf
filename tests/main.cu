// main.cu -- the test program: every tests/test_*.cu, one line for each failure, and 'N passed, N failed' at the end.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>
#include <doctest/doctest.h>

namespace {
struct Counter : doctest::IReporter {
    static int passed, failed;
    explicit Counter(const doctest::ContextOptions&) {}
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats& s) override {
        failed = (int)s.numTestCasesFailed, passed = (int)s.numTestCasesPassingFilters - failed;
    }
    void test_case_start(const doctest::TestCaseData&) override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}
};
int Counter::passed = 0;
int Counter::failed = 0;
REGISTER_LISTENER("counter", 1, Counter);
} // namespace

int main(int argc, char** argv) {
    doctest::Context context(argc, argv);
    const int status = context.run();
    if (context.shouldExit()) return status;
    std::printf("%d passed, %d failed\n", Counter::passed, Counter::failed);
    return status;
}
