// Shadow rows: a small share of the rows that a pipeline answered with fewer tokens, or that a cascade answered early
// runs on its last stage as well, after the client has its answer, to see whether the two still agree as often as when
// the cascade was searched. Of a pipeline some rows go through it again, by its most accurate way (audits).
//
// A shadow is a request of the gateway's own to the model of the last stage, or to the pipeline: of the class bulk, one
// row, whole. It is in no books but those of the stage that had answered, and of the work that it makes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/rules/audit.h"
#include "gateway/desk/call.h"
#include "gateway/desk/sample.h"
#include "gateway/fleet/cascade.h"

namespace arlo::gateway {

class Shadow;
class VisitCall;
struct FlowRow;

// What an audit is about: a label of a client's answer.
struct Audited {
  std::int32_t label = -1;
  std::size_t at = 0;   // of the row's answers,
  std::size_t of = 0;   // so many
  double accuracy = 0;  // that was expected of them
};

class ShadowListener {
 public:
  // It is over; nobody needs it any more.
  virtual void shadow_done(Shadow& shadow) = 0;

 protected:
  ~ShadowListener() = default;
};

class Shadow final : public Call {
 public:
  // Of a row that ends at `stage` with the label `said`; `sample`: that it goes into, or null.
  Shadow(ShadowListener& listener, const Row& row, std::int32_t stage, std::int32_t said,
         std::shared_ptr<SampledRow> sample);

  // Of a visit that a variant with fewer tokens answered with the label `said`, to the variant `all` of its stage.
  Shadow(ShadowListener& listener, const VisitCall& from, std::int32_t all, std::int32_t said);

  // Of a row that a pipeline has answered, to the pipeline again.
  Shadow(ShadowListener& listener, const Row& row, const Audited& audited);

  // Its request, after the row has ended and before its call is let go; `row` is the client's, null: it is of a visit.
  // A fault: the model does not take it.
  MaybeFault write(const Row* row);
  void complete() override { listener_.shadow_done(*this); }

  // The logits of the last stage's answer; empty: there is none.
  [[nodiscard]] std::string_view logits() const;
  // What the last stage says, a label of the cascade; -1: nothing of use.
  [[nodiscard]] std::int32_t answer() const;
  [[nodiscard]] const ModelSpec& of() const { return *of_; }  // the cascade, or the pipeline
  [[nodiscard]] std::int32_t stage() const { return stage_; }
  [[nodiscard]] std::int32_t variant() const { return variant_; }  // of a pipeline: whose answer it is about
  [[nodiscard]] std::int32_t said() const { return said_; }
  [[nodiscard]] const Audited* audited() const { return audited_.of > 0 ? &audited_ : nullptr; }  // null: no audit
  [[nodiscard]] std::shared_ptr<SampledRow> take_sample() { return std::move(sample_); }

 private:
  ShadowListener& listener_;
  const std::shared_ptr<const ModelSpec> of_;
  const std::int32_t stage_;
  const std::int32_t variant_ = -1;
  const std::int32_t all_ = -1;  // of a pipeline: the variant that it asks
  const std::int32_t said_;
  const Audited audited_;
  std::shared_ptr<SampledRow> sample_;
};

// The label of the largest of these logits; -1: there is none, or one is no number.
std::int32_t label_of(std::string_view logits);
// The label of the largest of a stage's logits, in the cascade's order; -1: they are of another number, or not finite.
std::int32_t label_of(const Cascade& cascade, std::size_t stage, std::string_view logits);

// Labels of a row's answers that came of a pipeline, in the order of their ways; empty: one is no classifier's.
std::vector<std::int32_t> labels_of(const FlowRow& row);

// The open ones, and what those before them said. Under the router's lock.
class Shadows {
 public:
  static constexpr std::size_t kMostOpen = 32;

  // Audits alarm when they differ more often than the accuracies that both ways expect allow: one of two answers that
  // differ is wrong.
  // Whether there is one of this row, if it ends early, by chance; the same for the same numbers.
  [[nodiscard]] static bool drawn(const Cascade& cascade, const flow::RowFacts& facts);

  [[nodiscard]] bool full() const { return open_.size() >= kMostOpen; }
  [[nodiscard]] const std::unordered_set<Shadow*>& open() const { return open_; }
  void begun(Shadow& shadow);
  void skipped(const ModelSpec& of) { ++at(of).skipped; }
  struct Result {
    bool good = false;
    bool disagreed = false;
  };
  Result ended(Shadow& shadow);
  void fill(v1::Shadows* out, const ModelSpec& cascade) const;
  void fill(v1::PipelineAudit* out, const ModelSpec& pipeline) const;

 private:
  struct Watch {
    std::size_t content = 0;  // of the cascade, or the pipeline, that the test is about
    flow::DisagreementTest test;
    double may_differ = 0, accuracy = 0;  // of audits, sums
    std::uint64_t skipped = 0, failed = 0;
  };
  Watch& at(const ModelSpec& of);

  std::unordered_set<Shadow*> open_;
  std::array<Watch, dispatch::kVariants> watches_;
};

}  // namespace arlo::gateway
