// test_stories.cu -- every story is read back as a reader would, and its sum done again without the table of patterns.
#include "data/stories.h"
#include <doctest/doctest.h>
#include <algorithm>
#include <sstream>

namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

std::vector<std::string> all_lines(const Stories& stories) { return lines_of(stories.train + stories.validation); }

// A story without its working, "Mia has 3 + 4 = 7 shells." as "Mia has 7 shells.", and the working with its result.
std::string without_working(const std::string& story, std::string* working = nullptr) {
    const size_t first = story.find(" = "), last = story.rfind(" = ") + 3;
    if (first == std::string::npos) return "no working in: " + story;
    const size_t begin = story.find_last_not_of("0123456789 +-", first) + 2; // after the space that follows a word
    if (working) *working = story.substr(begin, story.find_first_not_of("0123456789", last) - begin);
    return story.substr(0, begin) + story.substr(last);
}
std::vector<std::string> all_told(const Stories& stories) {
    std::vector<std::string> told;
    for (const std::string& story : all_lines(stories)) told.push_back(without_working(story));
    return told;
}

// "10 - 3 + 2" as a number.
int value_of(const std::string& sum) {
    std::istringstream stream(sum);
    int value = 0, term;
    stream >> value;
    for (char sign; stream >> sign >> term;) value += sign == '-' ? -term : term;
    return value;
}

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
    {"# more than", "", [](N n) { return n[0] + n[1]; }},
    {"have left?", "", [](N n) { return n[0] - n[1]; }},
    {"e gives # to ", "", [](N n) { return n[0] - n[1]; }},
    {"fly away", "", [](N n) { return n[0] - n[1]; }},
    {"How many more", "", [](N n) { return n[0] - n[1]; }},
    {"# fewer than", "", [](N n) { return n[0] - n[1]; }},
    {"more and gives #", "", [](N n) { return n[0] + n[1] - n[2]; }},
    {"then buys # more", "", [](N n) { return n[0] - n[1] + n[2]; }},
    {"bakes #", "", [](N n) { return n[0] - n[1] - n[2]; }},
    {"on Tuesday", "", [](N n) { return n[0] + n[1] + n[2]; }},
    {"twice as many", "", [](N n) { return 2 * n[0]; }},
    {"two bags", "in each bag", [](N n) { return 2 * n[0]; }},
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

} // namespace

TEST_CASE("the answer of every story is the arithmetic truth, and every kind of sum is told often") {
    std::map<const Meaning*, int> told;
    for (uint32_t seed : {1u, 2u})
        for (const std::string& story : all_told(make_stories(seed))) {
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

TEST_CASE("the working starts from numbers of the story, and every link of its chain has the same value") {
    size_t links = 0;
    for (const std::string& story : all_lines(make_stories())) {
        std::string working, shape, last_sum;
        const std::vector<int> told = numbers_of(without_working(story, &working), &shape);
        for (size_t at = 0, end; at != std::string::npos; at = end == std::string::npos ? end : end + 3, links++) {
            end = working.find(" = ", at);
            const std::string sum = working.substr(at, end == std::string::npos ? end : end - at);
            if (value_of(sum) != told.back()) FAIL_CHECK(story << " -- " << sum << " is not " << told.back());
            if (at == 0)
                for (int term : numbers_of(sum, &shape))
                    if (std::find(told.begin(), told.end(), term) == told.end()) FAIL_CHECK(story << " -- where is " << term << " from?");
        }
    }
    CHECK(links > 2 * all_lines(make_stories()).size()); // a sum and its result at least, and longer ones
}

TEST_CASE("nobody eats, drops, gives away or takes out more than there is, though more may come later") {
    int taken = 0;
    for (const std::string& story : all_told(make_stories())) {
        std::string shape;
        std::vector<int> n = numbers_of(story, &shape);
        for (const char* phrase :
             {"eats # of them", "eats # and", "e gives # to"})
            if (has(shape, phrase)) {
                taken++;
                if (n[1] > n[0]) FAIL_CHECK(story);
            }
    }
    CHECK(taken > 1000);
}

TEST_CASE("numbers are small: 1 to 9 in a story, 0 to 20 for its answer") {
    std::set<int> operands, answers;
    for (const std::string& story : all_told(make_stories())) {
        std::string shape;
        std::vector<int> n = numbers_of(story, &shape);
        answers.insert(n.back());
        operands.insert(n.begin(), n.end() - 1);
    }
    CHECK(operands.size() == 9);
    CHECK(*operands.begin() == 1);
    CHECK(*operands.rbegin() == 9);
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

TEST_CASE("a question and its answer are a story of the validation split, cut just before the working") {
    Stories stories = make_stories();
    std::vector<std::string> validation = lines_of(stories.validation);
    REQUIRE(stories.questions.size() == validation.size());
    for (size_t i = 0; i < validation.size(); i++) {
        const Question& q = stories.questions[i];
        std::string whole = q.prompt + q.answer, shape;
        bool opens_it = validation[i].compare(0, whole.size(), whole) == 0;
        bool spaced = q.prompt.back() == ' ' && q.answer.back() == ' ';
        std::string working;
        without_working(validation[i], &working);
        if (!opens_it || !spaced || q.answer != working + " " || has(q.prompt, " = "))
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
    CHECK(fingerprint(once) == 0x8a20dbc88971cd2au); // changes only with the stories
}

TEST_CASE("a smaller corpus is the beginning of a larger one") {
    Stories small = make_stories(1, 5000), large = make_stories(1, 50000);
    CHECK(large.train.compare(0, small.train.size(), small.train) == 0);
    CHECK(large.validation.compare(0, small.validation.size(), small.validation) == 0);
    CHECK(make_stories(1, 0).train == "");
}

TEST_CASE("stories are printable ASCII, one to a line, and fit a context of 160 bytes, most of them 144") {
    Stories stories = make_stories();
    CHECK(stories.train.back() == '\n');
    CHECK(stories.validation.back() == '\n');
    std::vector<std::string> all = all_lines(stories);
    size_t bytes = 0, fit = 0;
    for (const std::string& story : all) {
        bytes += story.size() + 1, fit += story.size() < 144;
        bool plain = story.back() == '.' && story.size() < 160;
        for (char c : story) plain &= c >= ' ' && c <= 'z' && c != '{';
        if (!plain) FAIL_CHECK(story);
    }
    double mean = (double)bytes / all.size();
    CHECK(mean > 120);
    CHECK(mean < 140);
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
