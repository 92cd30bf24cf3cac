// What rows become on the edges of a pipeline: labels, spans, slices and children, without a copy.

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "gateway/desk/flow_call.h"

namespace arlo::gateway {
namespace {

using Kind = FlowSpec::Expand::Kind;
using From = FlowSpec::Take::From;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A stage's answer for one row: output 0, FP32 of these dims.
struct Answered {
  Answered(const std::vector<float>& values, std::vector<std::int64_t> tail)
      : body(std::make_shared<std::string>(raw(values))) {
    auto spec = std::make_shared<ModelSpec>();
    spec->outputs.push_back({"scores", "FP32", 4, false, {}, false});
    spec->labels = {"O", "B-x", "I-x", "B-y"};
    variant.model = spec;
    row.response = body;
    row.parsed.set(0, std::move(tail), *body);
  }
  FlowSpec::Variant variant;
  std::shared_ptr<std::string> body;
  Row row;
};

TEST(Expand, TopLabelsBestFirst) {
  Answered answered({1, 9, std::numeric_limits<float>::quiet_NaN(), 9, 3}, {5});
  FlowSpec::Edge edge;
  edge.expand = {.kind = Kind::kTopK, .max = 4, .takes = {{{From::kLabel, -1}, {From::kScore, -1}}}, .read = {0}};
  auto from = std::make_shared<FlowSource>();
  FlowSource to;
  std::uint64_t bytes = 0;
  ASSERT_FALSE(expand(edge, answered.variant, 0, *from, 0, answered.row, to, &bytes).has_value());
  ASSERT_EQ(to.count, 4U);
  EXPECT_EQ(to.cell(0, 0), raw<std::int32_t>({1}));
  EXPECT_EQ(to.cell(0, 1), raw<std::int32_t>({3}));
  EXPECT_EQ(to.cell(0, 3), raw<std::int32_t>({0}));
  EXPECT_EQ(to.cell(1, 2), raw<float>({3}));
  EXPECT_GE(bytes, 4U * 8);
}

TEST(Expand, SlicesAreViewsAndStopAtMax) {
  Answered answered({1, 2, 3, 4, 5, 6}, {3, 2});
  FlowSpec::Edge edge;
  edge.expand = {.kind = Kind::kTensor, .max = 2, .takes = {{{From::kSlice, 0}, {From::kOwn, 0}}}, .read = {0}};
  auto from = std::make_shared<FlowSource>();
  const auto page = std::make_shared<const std::string>("page");
  from->inputs.push_back({page, {*page}});
  from->count = 1;
  FlowSource to;
  std::uint64_t bytes = 0;
  ASSERT_FALSE(expand(edge, answered.variant, 0, *from, 0, answered.row, to, &bytes).has_value());
  ASSERT_EQ(to.count, 2U);
  EXPECT_EQ(to.cell(0, 1), raw<float>({3, 4}));
  EXPECT_EQ(static_cast<const void*>(to.cell(0, 1).data()), answered.body->data() + 8);
  EXPECT_EQ(to.cell(1, 1), "page");
  EXPECT_EQ(static_cast<const void*>(to.cell(1, 0).data()), page->data());
  EXPECT_GE(bytes, answered.body->size());  // all of the answer is kept
}

TEST(Expand, SpansOfTokens) {
  // O B-x I-x B-x O B-y B-y I-x, and what tokenizers set at both ends.
  const std::vector<std::size_t> best = {1, 0, 1, 2, 1, 0, 3, 3, 2, 1};
  std::vector<float> scores(best.size() * 4);
  for (std::size_t i = 0; i < best.size(); ++i) scores[i * 4 + best[i]] = 1;
  Answered answered(scores, {4});
  FlowSpec::Edge edge;
  edge.expand = {.kind = Kind::kSpans, .max = 8, .takes = {}, .read = {0}};
  auto from = std::make_shared<FlowSource>();
  from->ids = std::make_shared<const std::vector<std::int64_t>>(
      std::vector<std::int64_t>{101, 10, 11, 12, 13, 14, 15, 16, 17, 102});
  from->pieces = {{0, 10}};
  FlowSource to;
  std::uint64_t bytes = 0;
  ASSERT_FALSE(expand(edge, answered.variant, 0, *from, 0, answered.row, to, &bytes).has_value());
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> wanted = {{2, 4}, {4, 5}, {6, 7}, {7, 8}, {8, 9}};
  EXPECT_EQ(to.pieces, wanted);
  EXPECT_EQ(to.count, 5U);
  std::vector<std::int64_t> ids;
  to.read(0, ids);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{101, 11, 12, 102}));
  EXPECT_EQ(to.ids, from->ids);

  edge.expand.max = 2;
  FlowSource fewer;
  ASSERT_FALSE(expand(edge, answered.variant, 0, *from, 0, answered.row, fewer, &bytes).has_value());
  EXPECT_EQ(fewer.count, 2U);
}

TEST(Expand, NothingIsNoChild) {
  Answered answered({1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}, {4});
  FlowSpec::Edge edge;
  edge.expand = {.kind = Kind::kSpans, .max = 8, .takes = {}, .read = {0}};
  auto from = std::make_shared<FlowSource>();
  from->ids = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{101, 5, 102});
  from->pieces = {{0, 3}};
  FlowSource to;
  std::uint64_t bytes = 0;
  ASSERT_FALSE(expand(edge, answered.variant, 0, *from, 0, answered.row, to, &bytes).has_value());
  EXPECT_EQ(to.count, 0U);
}

// Steps of two inputs stand beside each other, and are those of one part.
TEST(Join, StepsOfSeveralInputsAreOfOnePart) {
  ModelSpec model;
  for (const char* name : {"x", "y"}) {
    InputSpec input;
    input.name = name;
    input.datatype = "FP32";
    input.item = 4;
    input.dims = {-1};
    model.inputs.push_back(input);
  }
  const auto part = [](const std::vector<float>& x, const std::vector<float>& y) {
    auto source = std::make_shared<FlowSource>();
    for (const auto& values : {x, y}) {
      auto& cells = source->inputs.emplace_back();
      const auto body = std::make_shared<std::string>(raw(values));
      cells.of.emplace_back(*body);
      cells.body = body;
    }
    source->count = 1;
    return source;
  };
  std::uint64_t bytes = 0;
  FlowSource whole;
  const auto a = part({1, 2}, {3, 4});
  const auto b = part({5}, {6});
  EXPECT_FALSE(join({a.get(), b.get()}, model, whole, &bytes).has_value());
  EXPECT_EQ(whole.cell(0, 0), raw<float>({1, 2, 5}));
  EXPECT_EQ(whole.cell(1, 0), raw<float>({3, 4, 6}));
  EXPECT_EQ(bytes, 24U);
  FlowSource none;
  const auto more = part({1, 2, 3}, {4, 5});
  const auto less = part({1, 2}, {3, 4, 5});
  EXPECT_TRUE(join({more.get(), less.get()}, model, none, &bytes).has_value()) << "as many in all, not of each";
  FlowSource alone;
  EXPECT_FALSE(join({b.get()}, model, alone, &bytes).has_value());
  EXPECT_EQ(bytes, 24U) << "one alone is not written anew";
}

}  // namespace
}  // namespace arlo::gateway
