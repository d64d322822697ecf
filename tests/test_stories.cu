// test_stories.cu -- every story is read back as a reader would, and its sum done again without the table of patterns.
#include "data/stories.h"
#include <doctest/doctest.h>
#include <sstream>

namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

std::vector<std::string> all_lines(const Stories& stories) { return lines_of(stories.train + stories.validation); }

// The numbers of a story, and the story with '#' in the place of each.
std::vector<int> numbers_of(const std::string& story, std::string* shape) {
    std::vector<int> numbers;
    shape->clear();
    for (size_t i = 0; i < story.size(); i++) {
        if (!isdigit(story[i])) {
            *shape += story[i];
            continue;
        }
        size_t length = 0;
        numbers.push_back(std::stoi(story.substr(i), &length));
        i += length - 1;
        *shape += '#';
    }
    return numbers;
}

// What the words mean, in words of our own: a story with this phrase (and this other one) asks for this sum.
struct Meaning {
    const char *phrase, *other;
    int (*sum)(const std::vector<int>&);
};
using N = const std::vector<int>&;
const Meaning MEANINGS[] = {
    {"# more. How many", "", [](N n) { return n[0] + n[1]; }},
    {"in the evening", "", [](N n) { return n[0] + n[1]; }},
    {"# more in the box", "", [](N n) { return n[0] + n[1]; }},
    {"in one bag", "", [](N n) { return n[0] + n[1]; }},
    {"# more than", "", [](N n) { return n[0] + n[1]; }},
    {"have left?", "", [](N n) { return n[0] - n[1]; }},
    {"e gives # to ", "", [](N n) { return n[0] - n[1]; }},
    {"fly away", "", [](N n) { return n[0] - n[1]; }},
    {" for # coin", "", [](N n) { return n[0] - n[1]; }},
    {"drops #", "", [](N n) { return n[0] - n[1]; }},
    {"How many more", "", [](N n) { return n[0] - n[1]; }},
    {"# fewer than", "", [](N n) { return n[0] - n[1]; }},
    {"more and gives #", "", [](N n) { return n[0] + n[1] - n[2]; }},
    {"then buys # more", "", [](N n) { return n[0] - n[1] + n[2]; }},
    {"bakes #", "", [](N n) { return n[0] - n[1] - n[2]; }},
    {"on Tuesday", "", [](N n) { return n[0] + n[1] + n[2]; }},
    {"takes # out", "puts # in", [](N n) { return n[0] - n[1] + n[2]; }},
    {"twice as many", "", [](N n) { return 2 * n[0]; }},
    {"two bags", "in each bag", [](N n) { return 2 * n[0]; }},
    {"three boxes", "in each box", [](N n) { return 3 * n[0]; }},
    {"eats # of the ", "", [](N n) { return n[0] - n[2]; }},
    {"finds # more ", "s. Now", [](N n) { return n[0] + n[2]; }},
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

} // namespace

TEST_CASE("the answer of every story is the arithmetic truth, and every kind of sum is told often") {
    std::map<const Meaning*, int> told;
    for (uint32_t seed : {1u, 2u})
        for (const std::string& story : all_lines(make_stories(seed))) {
            std::string shape;
            std::vector<int> n = numbers_of(story, &shape);
            int answer = n.back(), meanings = 0;
            n.pop_back();
            for (const Meaning& m : MEANINGS)
                if (has(shape, m.phrase) && has(shape, m.other)) {
                    meanings++, told[&m]++;
                    if (m.sum(n) != answer) FAIL_CHECK(story << " -- the sum is " << m.sum(n));
                }
            if (meanings != 1) FAIL_CHECK(story << " -- has " << meanings << " meanings");
        }
    for (const Meaning& m : MEANINGS) CHECK_MESSAGE(told[&m] > 300, m.phrase);
}

TEST_CASE("nobody eats, drops, gives away or takes out more than there is, though more may come later") {
    int taken = 0;
    for (const std::string& story : all_lines(make_stories())) {
        std::string shape;
        std::vector<int> n = numbers_of(story, &shape);
        for (const char* phrase :
             {"eats # of them", "eats # and", "takes # out", "drops #", "e gives # to", "for # coin"})
            if (has(shape, phrase)) {
                taken++;
                if (n[1] > n[0]) FAIL_CHECK(story);
            }
    }
    CHECK(taken > 1000);
}

TEST_CASE("numbers are small: 1 to 10 in a story, 0 to 20 for its answer") {
    std::set<int> operands, answers;
    for (const std::string& story : all_lines(make_stories())) {
        std::string shape;
        std::vector<int> n = numbers_of(story, &shape);
        answers.insert(n.back());
        operands.insert(n.begin(), n.end() - 1);
    }
    CHECK(operands.size() == 10);
    CHECK(*operands.begin() == 1);
    CHECK(*operands.rbegin() == 10);
    CHECK(answers.size() == 21);
    CHECK(*answers.begin() == 0);
    CHECK(*answers.rbegin() == 20);
}

TEST_CASE("no story is told twice, so none of the validation split can be learned by heart") {
    for (uint32_t seed : {1u, 7u}) {
        Stories stories = make_stories(seed);
        std::vector<std::string> train = lines_of(stories.train), validation = lines_of(stories.validation);
        std::set<std::string> seen(train.begin(), train.end());
        CHECK(seen.size() == train.size());
        for (const std::string& story : validation)
            if (!seen.insert(story).second) FAIL_CHECK("twice: " << story);
        for (const Question& q : stories.questions) // not even with another answer
            if (has(stories.train, "\n" + q.prompt)) FAIL_CHECK("in the training split: " << q.prompt);
    }
}

TEST_CASE("the corpus is a megabyte, nine tenths of it for training, with 500 questions or more") {
    Stories stories = make_stories();
    size_t total = stories.train.size() + stories.validation.size();
    CHECK(total >= 1 << 20);
    CHECK(total < (1 << 20) + 200);
    CHECK((double)stories.train.size() / total == doctest::Approx(0.9).epsilon(0.01));
    CHECK(stories.questions.size() >= 500);
    CHECK(stories.questions.size() == lines_of(stories.validation).size());
}

TEST_CASE("a question and its answer are a story of the validation split, cut just before the digits") {
    Stories stories = make_stories();
    std::vector<std::string> validation = lines_of(stories.validation);
    REQUIRE(stories.questions.size() == validation.size());
    for (size_t i = 0; i < validation.size(); i++) {
        const Question& q = stories.questions[i];
        std::string whole = q.prompt + q.answer, shape;
        bool opens_it = validation[i].compare(0, whole.size(), whole) == 0;
        bool spaced = q.prompt.back() == ' ' && q.answer.back() == ' ';
        int answer = numbers_of(validation[i], &shape).back();
        if (!opens_it || !spaced || q.answer != std::to_string(answer) + " " || q.answer.size() > 3)
            FAIL_CHECK(validation[i] << " -- [" << q.prompt << "][" << q.answer << "]");
    }
}

TEST_CASE("a seed writes the same bytes on every machine") {
    auto fingerprint = [](const Stories& stories) { // FNV-1a
        uint64_t hash = 0xcbf29ce484222325u;
        for (unsigned char c : stories.train + stories.validation) hash = (hash ^ c) * 0x100000001b3u;
        return hash;
    };
    Stories once = make_stories(1), again = make_stories(1), other = make_stories(2);
    CHECK(once.train == again.train);
    CHECK(once.validation == again.validation);
    CHECK(once.train != other.train);
    CHECK(fingerprint(once) == 0xa3645bb500756ca5u); // changes only with the stories
}

TEST_CASE("a smaller corpus is the beginning of a larger one") {
    Stories small = make_stories(1, 5000), large = make_stories(1, 50000);
    CHECK(large.train.compare(0, small.train.size(), small.train) == 0);
    CHECK(large.validation.compare(0, small.validation.size(), small.validation) == 0);
    CHECK(make_stories(1, 0).train == "");
}

TEST_CASE("stories are printable ASCII, one to a line, and fit a context of 160 bytes, most of them 128") {
    Stories stories = make_stories();
    CHECK(stories.train.back() == '\n');
    CHECK(stories.validation.back() == '\n');
    std::vector<std::string> all = all_lines(stories);
    size_t bytes = 0, fit = 0;
    for (const std::string& story : all) {
        bytes += story.size() + 1, fit += story.size() < 128;
        bool plain = story.back() == '.' && story.size() < 160;
        for (char c : story) plain &= c >= ' ' && c <= 'z' && c != '{';
        if (!plain) FAIL_CHECK(story);
    }
    double mean = (double)bytes / all.size();
    CHECK(mean > 110);
    CHECK(mean < 128);
    CHECK(fit > all.size() * 3 / 4);
}

TEST_CASE("one shell, two shells; and a story of one person calls her she") {
    std::vector<std::string> all = all_lines(make_stories());
    CHECK(all.size() > 5000);
    for (const std::string& story : all) {
        std::istringstream stream(story);
        std::set<std::string> words, women, men;
        std::string before;
        for (std::string word; stream >> word; before = word) {
            while (ispunct(word.back())) word.pop_back();
            words.insert(word);
            for (const char* unit : {"apple", "bird", "coin", "bun", "shell", "egg"}) {
                if (before == "1" && word == std::string(unit) + "s") FAIL_CHECK(story);
                if (word == unit && before != "1" && before != "a") FAIL_CHECK(story);
            }
        }
        for (const char* name : {"Anna", "Mia", "Lucy", "Emma", "Rosa", "Nina"})
            if (words.count(name)) women.insert(name);
        for (const char* name : {"Tom", "Ben", "Sam", "Max", "Jack", "Leo"})
            if (words.count(name)) men.insert(name);
        bool people = women.size() + men.size() >= 1 && women.size() + men.size() <= 2;
        bool she = words.count("she") || words.count("She"), he = words.count("he") || words.count("He");
        if (!people || (she && women.empty()) || (he && men.empty()) || (she && he)) FAIL_CHECK(story);
    }
}
