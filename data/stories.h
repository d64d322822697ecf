// stories.h -- a corpus that needs no network: short stories whose small sums are stated and always right.
//
//   opening   "Mia and Ben are in the garden."
//   pattern   "Mia has 3 shells. Ben gives Mia 4 more. How many shells does Mia have now? Mia has 3 + 4 = 7 shells."
//   answer    n = a*x + b*y + c*z, the integers a, b, c from the pattern's row; x, y, z are drawn from 1 .. 9
//
// Units    about 1 MB is 8,000 stories, one to a line, plain ASCII; a story is about 130 bytes, none above 160
// Why      What a model has learned of this text can be marked like homework: a question is a story it never saw, cut just
//          before the working, and its answer is the working and the result.
//          The sum is worked out on the page, one operation at a time: a small model learns that in a minute. Asked for the
//          bare result, it learns the words and not the sums.
//          Story i is a function of (seed, i), so every machine and every run reads the same bytes.
// Tests    tests/test_stories.cu (does every sum again, by other means)
#pragma once
#include "../rng.h"
#include <map>
#include <set>

// The story up to its working, and the answer: working, result and the one byte after it, so that 1 does not pass for 12.
struct Question {
    std::string prompt, answer;
};

struct Stories {
    std::string train, validation;   // one story per line; no story is told twice
    std::vector<Question> questions; // one for each story of the validation split, in its order
};

// ==== what the stories are about =====================================================================================

// clang-format off
struct Person {
    const char *name, *he, *He;
};
constexpr Person PEOPLE[] = {
    {"Tom", "he", "He"}, {"Anna", "she", "She"}, {"Ben", "he", "He"},  {"Mia", "she", "She"},
    {"Sam", "he", "He"}, {"Lucy", "she", "She"}, {"Max", "he", "He"},  {"Emma", "she", "She"},
    {"Leo", "he", "He"}, {"Rosa", "she", "She"}, {"Jack", "he", "He"}, {"Nina", "she", "She"},
};
constexpr const char* THINGS[] = {"book",   "shell", "marble", "card",   "pencil",
                                  "button", "stone", "ball",   "flower", "kite"};
constexpr const char* FOODS[] = {"apple", "plum", "pear", "cookie", "carrot", "nut", "egg", "bun"};
constexpr const char* PLACES[] = {"at home",      "at school",   "in the garden", "in the park",
                                  "on the beach", "at the farm", "by the river",  "in the kitchen"};

// A slot is a word, {A}, or a number and its noun, {x thing}: "1 shell", "2 shells". {n} is the answer, with its working
// before it, once per story.
constexpr const char* OPENINGS[] = {
    "{A} is {place}.",        "{A} and {B} are {place}.",      "It is a sunny day and {A} is {place}.",
    "{A} meets {B} {place}.", "{A} and {B} are good friends.", "It is a quiet day {place}.",
};

struct Pattern {
    int a, b, c; // n = a*x + b*y + c*z
    const char* text;
};

constexpr Pattern PATTERNS[] = {
    //x   y   z   adding
    {+1, +1,  0, "{A} has {x thing}. {B} gives {A} {y} more. How many {thing}s does {A} have now? {A} has {n thing}."},
    {+1, +1,  0, "{A} finds {x thing}. Then {he} finds {y} more. How many {thing}s is that? {He} has {n thing}."},
    {+1, +1,  0, "{A} buys {x food} in the morning and {y food} in the evening. In all {he} buys {n food}."},
    {+1, +1,  0, "{A} puts {x thing} in a box. {B} puts {y} more in the box. Now the box holds {n thing}."},
    //x   y   z   taking away
    {+1, -1,  0, "{A} has {x food}. {He} eats {y}. How many {food}s does {A} have left? {A} has {n food} left."},
    {+1, -1,  0, "{A} has {x thing}. {He} gives {y} to {B}. How many {thing}s does {A} have now? {A} has {n thing}."},
    {+1, -1,  0, "{A} sees {x bird} in a tree. Soon {he} sees {y} fly away. Now {A} sees {n bird} in the tree."},
    //x   y   z   two steps
    {+1, +1, -1, "{A} has {x thing}. {He} finds {y} more and gives {z} to {B}. Now {A} has {n thing}."},
    {+1, -1, +1, "{A} has {x food}. {He} eats {y} of them and then buys {z} more. Now {A} has {n food}."},
    {+1, -1, -1, "{A} bakes {x bun}. {He} eats {y} and {B} eats {z}. How many buns are left? {A} has {n bun} left."},
    {+1, +1, +1, "{A} finds {x thing} on Monday, {y} on Tuesday and {z} on Sunday. In all {he} finds {n thing}."},
    //x   y   z   comparing
    {+1, -1,  0, "{A} has {x thing}. {B} has {y thing}. How many more {thing}s does {A} have? {A} has {n} more."},
    {+1, +1,  0, "{A} has {x thing}. {B} has {y} more than {A}. How many {thing}s does {B} have? {B} has {n thing}."},
    {+1, -1,  0, "{A} has {x thing}. {B} has {y} fewer than {A}. How many {thing}s does {B} have? {B} has {n thing}."},
    //x   y   z   counting twice
    {+2,  0,  0, "{A} has {x thing}. {B} has twice as many. How many {thing}s does {B} have? {B} has {n thing}."},
    {+2,  0,  0, "{A} has two bags. {He} puts {x food} in each bag. How many {food}s is that? {He} has {n food}."},
};
// clang-format on

// ==== telling them ===================================================================================================

// The working of a sum, up to its result: "3 + 4 - 2 = 7 - 2 = ".
inline std::string working(std::vector<int> terms) {
    std::string text;
    while (terms.size() > 1) {
        text += std::to_string(terms[0]);
        for (size_t i = 1; i < terms.size(); i++) text += (terms[i] < 0 ? " - " : " + ") + std::to_string(std::abs(terms[i]));
        text += " = ";
        terms[1] += terms[0];
        terms.erase(terms.begin());
    }
    return text;
}

// The text with every slot filled from `words`.
inline std::string fill_slots(const std::string& text, const std::map<std::string, std::string>& words) {
    auto meaning = [&](const std::string& word) { return words.count(word) ? words.at(word) : word; };
    std::string filled;
    for (size_t i = 0; i < text.size(); i++) {
        if (text[i] != '{') {
            filled += text[i];
            continue;
        }
        std::string slot = text.substr(i + 1, text.find('}', i) - i - 1);
        i += slot.size() + 1;
        size_t space = slot.find(' ');
        std::string number = slot.substr(0, space), first = meaning(number);
        filled += (number == "n" ? words.at("working") : "") + first;
        if (space != std::string::npos) filled += " " + meaning(slot.substr(space + 1)) + (first == "1" ? "" : "s");
    }
    return filled;
}

// Story i of a seed, and the question that it answers.
inline std::string tell_story(Question* question, Rng rng, uint64_t i) {
    uint64_t draws = i << 32; // each story has its own 2^32 numbers of the stream
    auto draw = [&](size_t bound) { return (size_t)rng.below(draws++, bound); };
    auto any = [&](const auto& table) { return table[draw(sizeof(table) / sizeof(table[0]))]; };

    constexpr size_t people = sizeof(PEOPLE) / sizeof(PEOPLE[0]);
    size_t first = draw(people), second = (first + 1 + draw(people - 1)) % people; // two different people
    Person A = PEOPLE[first], B = PEOPLE[second];
    std::string opening = any(OPENINGS), place = any(PLACES), thing = any(THINGS), food = any(FOODS);

    Pattern p = any(PATTERNS);
    auto countable = [](int n) { return 0 <= n && n <= 20; }; // nobody gives away more than there is
    int x, y, z, n;
    do {
        x = 1 + draw(9), y = 1 + draw(9), z = 1 + draw(9);
        n = p.a * x + p.b * y + p.c * z;
    } while (!countable(p.a * x) || !countable(p.a * x + p.b * y) || !countable(n));

    std::vector<int> terms;
    for (auto [times, value] : {std::pair(p.a, x), std::pair(p.b, y), std::pair(p.c, z)})
        terms.insert(terms.end(), std::abs(times), times < 0 ? -value : value);
    std::map<std::string, std::string> words = {
        {"A", A.name},
        {"he", A.he},
        {"He", A.He},
        {"B", B.name},
        {"place", place},
        {"thing", thing},
        {"food", food},
        {"x", std::to_string(x)},
        {"y", std::to_string(y)},
        {"z", std::to_string(z)},
        {"n", std::to_string(n)},
        {"working", working(terms)},
    };
    std::string text = opening + " " + p.text, story = fill_slots(text, words);
    question->prompt = fill_slots(text.substr(0, text.find("{n")), words);
    question->answer = story.substr(question->prompt.size(), words["working"].size() + words["n"].size() + 1);
    return story;
}

// About `bytes` of stories, no two alike; every tenth goes to the validation split.
inline Stories make_stories(uint32_t seed = 1, size_t bytes = 1 << 20) {
    Stories stories;
    std::set<std::string> told;
    Rng rng(seed, Stream::stories);
    for (uint64_t i = 0; stories.train.size() + stories.validation.size() < bytes; i++) {
        Question question;
        std::string story = tell_story(&question, rng, i);
        if (!told.insert(story).second) continue;
        bool tenth = told.size() % 10 == 0;
        (tenth ? stories.validation : stories.train) += story + "\n";
        if (tenth) stories.questions.push_back(question);
    }
    return stories;
}
