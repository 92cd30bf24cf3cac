// Golden numbers of the cascades' decision (docs/flows.md), and what its Python twin does not reach: both are held
// equal by tests/property/test_cascade_twin.py, on rules, confidences, pruned rows, hashes and drift.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "flow/cascade/cascade.h"

namespace arlo::flow {
namespace {

constexpr double kExact = 1e-9;

Judge tempered(double t, bool squared = false) {
  Judge stage;
  stage.calibrator.t = t;
  stage.squared = squared;
  return stage;
}

double conf(const Judge& stage, const std::vector<float>& logits) {
  std::vector<double> scratch;
  return confidence(stage, {.logits = logits, .labels = logits.size()}, 10, scratch);
}

Guard hard(double t) { return {.below = {{512, t}}}; }

Guard soft(double c, double k) { return {.rule = Guard::Rule::kSoft, .c = c, .k = k}; }

TEST(CascadeConfidence, IsTheLargestProbabilityAtTheTemperature) {
  const std::vector<float> three = {2, 0.5, -1};
  EXPECT_NEAR(conf(tempered(.5), three), .950330211697, kExact);
  EXPECT_NEAR(conf(tempered(1), three), .785597034589, kExact);
  EXPECT_NEAR(conf(tempered(1.5), three), .665240955775, kExact);
  EXPECT_NEAR(conf(tempered(2.5), three), .540538831852, kExact);
  EXPECT_NEAR(conf(tempered(1.5, true), three), .442545529240, kExact);
  EXPECT_NEAR(conf(tempered(1.5), {10, 9, 0, -5}), .660181417309, kExact);
}

TEST(CascadeConfidence, OfAnotherNumberOfLabelsIsZero) {
  auto stage = tempered(1);
  stage.label_order = {1, 0};
  EXPECT_EQ(conf(stage, {3, 1, 2}), 0);
  stage.label_order.clear();
  stage.calibrator.kind = Calibrator::Kind::kVector;
  stage.calibrator.scale = stage.calibrator.bias = {1, 1};
  EXPECT_EQ(conf(stage, {3, 1, 2}), 0);
  EXPECT_GT(conf(stage, {3, 1}), 0.5);
}

TEST(CascadeConfidence, OfASpanIsTheLesserOfStartAndEnd) {
  const std::vector<float> start = {4, 1, 0, 0};
  const std::vector<float> end = {0, 0, 3, 2.5};
  std::vector<double> scratch;
  const Signals signals{.logits = start, .labels = 4, .end_logits = end};
  EXPECT_NEAR(confidence(tempered(1.5, true), signals, 10, scratch), .253230505870, kExact);
}

TEST(CascadeRule, SoftIsEquation4) {
  const auto p = [](double k, double con) { return chance(soft(.9, k), con, 1); };
  EXPECT_EQ(p(10, .85), 1);
  EXPECT_EQ(p(10, .9), 1);
  EXPECT_NEAR(p(10, .925), .924141819979, kExact);
  EXPECT_NEAR(p(10, .95), .5, kExact);
  EXPECT_NEAR(p(10, .975), .075858180021, kExact);
  EXPECT_NEAR(p(10, 1), .006692850924, kExact);
  EXPECT_NEAR(p(5, 1), .075858180021, kExact);
  EXPECT_EQ(chance(soft(1, 10), 1, 1), 1);
}

TEST(CascadeRule, HashIsTheSameEverywhere) {
  EXPECT_NEAR(hash01(0, 0, 0), .652448486374, kExact);
  EXPECT_NEAR(hash01(0, 1, 0), .892718202178, kExact);
  EXPECT_NEAR(hash01(0, 1, 1), .564723094021, kExact);
  EXPECT_NEAR(hash01(42, 123456789, 0), .025250861799, kExact);
}

struct Three {
  CascadeSpec spec;
  Rules rules;

  Three() {
    spec.stages.resize(3);
    spec.labels = 2;
    rules.prices = {{hard(.8), hard(.6)}, {hard(.5), hard(.5)}};
  }
  [[nodiscard]] Decision at(std::int32_t stage, double confidence, StageSet present = 7, std::int32_t price = 0,
                            RowFacts row = {.length = 5}) const {
    return decide(spec, rules, stage, confidence, row, present, price);
  }
};

TEST(CascadeDecision, ExitsEscalatesAndSaysWhy) {
  const Three three;
  EXPECT_EQ(three.at(0, .8).reason, Reason::kConfident);
  EXPECT_EQ(three.at(0, .79).to, 1);
  EXPECT_EQ(three.at(1, .59).to, 2);
  EXPECT_EQ(three.at(2, .1).reason, Reason::kFinal);
  EXPECT_EQ(three.at(0, .5, 7, 1).reason, Reason::kLoad);
  EXPECT_EQ(three.at(0, .9, 7, 1).reason, Reason::kConfident);
  EXPECT_EQ(three.at(0, .4, 7, 9).to, 1) << "the last price counts for those above";
}

TEST(CascadeDecision, PassesOverStagesThatAreNotThere) {
  const Three three;
  EXPECT_EQ(three.at(0, .1, 0b101).to, 2);
  EXPECT_EQ(three.at(0, .1, 0b001).reason, Reason::kStageAbsent);
  EXPECT_TRUE(degraded(three.at(0, .1, 0b001).reason));
  EXPECT_EQ(entry(0b110, 0, 3), 1);
  EXPECT_EQ(entry(0, 0, 3), -1);
}

TEST(CascadeMix, IsWeightedByAccuracy) {
  Mix mix;
  std::vector<double> q(2);
  ASSERT_TRUE(calibrate(tempered(1), std::vector<float>{1.2F, .4F}, 1, q));
  mix.add(76.2, q);
  EXPECT_FALSE(mix.several());
  ASSERT_TRUE(calibrate(tempered(1), std::vector<float>{-.3F, .1F}, 1, q));
  mix.add(91.4, q);
  mix.probabilities(q);
  EXPECT_NEAR(q[0], .532553719139, 1e-7);
  EXPECT_NEAR(q[1], .467446280861, 1e-7);
}

// ---- pruning: this paper is beauti ##fully written and enjoy ##able ----

enum : std::int64_t { kThis = 1, kPaper, kIs, kBeauti, kFully, kWritten, kAnd, kEnjoy, kAble, kCls, kSep };

struct Sentence {
  Vocabulary vocabulary;
  std::vector<std::int64_t> ids = {kCls, kThis, kPaper, kIs, kBeauti, kFully, kWritten, kAnd, kEnjoy, kAble, kSep};
  std::vector<float> importance = {9, .60F, 1.20F, .45F, 2.20F, .40F, .80F, .30F, 1.85F, 1.20F, 9};

  Sentence() {
    vocabulary.word_start = {0xff, 0xff};
    vocabulary.word_start[kFully / 8] &= static_cast<std::uint8_t>(~(1U << (kFully % 8)));
    vocabulary.word_start[kAble / 8] &= static_cast<std::uint8_t>(~(1U << (kAble % 8)));
    vocabulary.special = {kCls, kSep};
  }
  [[nodiscard]] std::vector<std::int64_t> pruned(double alpha) const {
    std::vector<std::uint32_t> kept;
    prune({.alpha = alpha, .to_level = false, .min_words = 1}, vocabulary, ids, importance, {}, kept);
    std::vector<std::int64_t> words;
    for (const auto at : kept) words.push_back(ids[at]);
    return words;
  }
};

using Ids = std::vector<std::int64_t>;

TEST(CascadePrune, KeepsWordsAboveTheMean) {
  const Sentence s;
  EXPECT_EQ(s.pruned(.5), (Ids{kCls, kThis, kPaper, kBeauti, kFully, kWritten, kEnjoy, kAble, kSep}));
  EXPECT_EQ(s.pruned(.7), (Ids{kCls, kPaper, kBeauti, kFully, kWritten, kEnjoy, kAble, kSep}));
  EXPECT_EQ(s.pruned(.9), (Ids{kCls, kPaper, kBeauti, kFully, kEnjoy, kAble, kSep}));
}

// th ##is paper is beautifully writ ##ten and enjoyable
struct Reworded {
  Vocabulary vocabulary;
  std::vector<std::int64_t> ids = {20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 21};

  Reworded() {
    vocabulary.word_start = {0x7b, 0xff};  // 2 and 7 go on with a word
    vocabulary.special = {20, 21};
  }
};

TEST(CascadePrune, InTheTokensOfAnotherVocabulary) {
  const Sentence s;
  const Reworded there;
  const Rewording to{there.vocabulary, there.ids};
  std::vector<std::uint32_t> kept;
  prune({.alpha = .9, .min_words = 1}, s.vocabulary, s.ids, s.importance, std::vector<std::int32_t>{8, 16}, kept, &to);
  EXPECT_EQ(kept, (std::vector<std::uint32_t>{0, 3, 4, 5, 6, 7, 9, 10})) << "paper is beautifully written enjoyable";
  // What was left out before stays so.
  const std::vector<std::uint32_t> left = {0, 2, 4, 5, 10};
  ASSERT_TRUE(reword(s.vocabulary, s.ids, left, to, kept));
  EXPECT_EQ(kept, (std::vector<std::uint32_t>{0, 3, 5, 10})) << "paper beautifully";
}

TEST(CascadePrune, OtherWordsAllGo) {
  const Sentence s;
  Reworded there;
  there.ids.insert(there.ids.begin() + 5, 21);  // parted elsewhere
  std::vector<std::uint32_t> kept;
  const Rewording parted{there.vocabulary, there.ids};
  prune({.alpha = .9, .min_words = 1}, s.vocabulary, s.ids, s.importance, std::vector<std::int32_t>{8, 16}, kept,
        &parted);
  EXPECT_TRUE(kept.empty());
  EXPECT_FALSE(reword(s.vocabulary, s.ids, std::vector<std::uint32_t>{0}, parted, kept));
  there.ids = {20, 1, 21};  // fewer
  const Rewording fewer{there.vocabulary, there.ids};
  EXPECT_FALSE(reword(s.vocabulary, s.ids, std::vector<std::uint32_t>{0}, fewer, kept));
}

TEST(CascadePrune, WithoutImportanceSendsAll) {
  Sentence s;
  s.importance.clear();
  EXPECT_TRUE(s.pruned(.9).empty());
  s.importance.assign(s.ids.size(), NAN);
  EXPECT_TRUE(s.pruned(.9).empty());
}

// ---- what is refused ----

TEST(CascadeValidate, NamesTheField) {
  Three three;
  const auto said = [&] {
    try {
      validate(three.spec);
      validate(three.rules, three.spec);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(said(), "");
  three.rules.prices[0][0] = hard(1.2);
  EXPECT_NE(said().find("rules[0][0].below"), std::string::npos);
  three.rules.prices[0][0] = hard(NAN);
  EXPECT_NE(said().find("rules[0][0].below"), std::string::npos);
  three.rules.prices[0][0] = hard(.5);
  three.rules.skip = {{.2, .3}};
  EXPECT_NE(said().find("skip[0]"), std::string::npos);
  three.rules.skip.clear();
  three.spec.stages[1].judge.calibrator.t = 0;
  EXPECT_NE(said().find("stages[1].calibrator.t"), std::string::npos);
}

}  // namespace
}  // namespace arlo::flow
