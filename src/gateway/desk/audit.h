// Audits: a small share of rows is asked again the most accurate way, after the client has its answer, to check answer
// quality. A row that a cascade answered early asks the last stage. A row that a pipeline answered by less than its
// most accurate variants asks those, and a row answered with fewer tokens asks the variant with all tokens.
//
// An audit is a request by the gateway: bulk, one row, whole. It is counted only in the books of the audited stage and
// of the work that it causes.
//
// Of a cascade a sample is kept for `arlo fit --from`: the stages' answers for rows whose last stage's answer is known.
// Rows that end early are in it when they are audited; rows that reach the last stage are drawn by the same chance at
// the same moments. So it is a fair sample of all rows that came while the last stage had room.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/rules/audit.h"
#include "gateway/desk/call.h"
#include "gateway/desk/effects.h"
#include "gateway/fleet/cascade.h"
#include "gateway/fleet/fleet.h"

namespace arlo::gateway {

class Audit;
class VisitCall;

struct SampledRow {
  std::int32_t length = 0;                                        // tokens, before any were left out
  std::int32_t pruned = 0;                                        // tokens that the last stage did not see
  double share = 0;                                               // probability with which it was drawn
  std::uint64_t at_ms = 0;                                        // Unix time
  std::vector<std::pair<std::int32_t, std::vector<float>>> said;  // (stage, raw logits) pairs, ascending
};

// The last rows of one cascade, up to a fixed number. Under the router's lock; the rows themselves never change.
class Sample {
 public:
  static constexpr std::size_t kMostRows = 20'000;
  static constexpr std::size_t kMostNumbers = 2'000'000;  // logits, of all rows: 8 MB

  using Rows = std::deque<std::shared_ptr<const SampledRow>>;

  // Adds a row, after dropping rows of a cascade with other stages or labels.
  void add(const Cascade& cascade, std::shared_ptr<const SampledRow> row);
  [[nodiscard]] const Rows& rows() const { return rows_; }

 private:
  Rows rows_;
  std::size_t numbers_ = 0;
  std::vector<std::string> of_;  // stages, then labels
};

void fill_sample(const Sample::Rows& rows, v1::GetSampleReply* out);

class AuditListener {
 public:
  // The audit has ended and may be deleted.
  virtual void audit_done(Audit& audit) = 0;

 protected:
  ~AuditListener() = default;
};

class Audit final : public Call {
 public:
  // A label in a client's answer, and the model that is asked for it again.
  struct About {
    std::shared_ptr<const ModelSpec> of;     // the model that answered: a cascade or a pipeline
    std::shared_ptr<const ModelSpec> asked;  // its last stage, the variant with all tokens, or the pipeline itself
    int logits = -1;                         // output of `asked` with the label; -1: its answers
    std::int32_t stage = 0;                  // the stage that answered
    std::int32_t variant = -1;               // its variant with fewer tokens; -1: the audit is not about tokens
    std::int32_t label = -1;
    std::size_t at = 0;                    // index among the pipeline's answers to the row
    std::size_t answers = 0;               // number of those answers
    double accuracy = 0;                   // expected accuracy of the answers
    std::shared_ptr<SampledRow> sample{};  // the sample row that the answer completes; null: none
  };

  // `like`: the call whose row is audited.
  Audit(AuditListener& listener, const Call& like, About about);

  // Writes the request, after the row has ended and before its call is released; null: `body` has the input. A fault:
  // the model does not accept the row.
  MaybeFault write(const Row* row);
  void complete() override { listener_.audit_done(*this); }

  // The logits of the answer; empty: it has none.
  [[nodiscard]] std::string_view logits() const;
  // The label in the answer; -1: nothing usable.
  [[nodiscard]] std::int32_t answer() const;
  [[nodiscard]] const About& about() const { return about_; }
  [[nodiscard]] std::shared_ptr<SampledRow> take_sample() { return std::move(about_.sample); }

 private:
  AuditListener& listener_;
  About about_;
};

// Chooses the rows to ask again, and tests whether the answers differ from the clients' more often than allowed: by a
// cascade's operating point, or by the expected accuracies of a pipeline's two answers, as one of two that differ is
// wrong. Token counts are compared, not tested. Under the router's lock.
class Audits {
 public:
  static constexpr std::size_t kMostOpen = 32;

  Audits(const dispatch::Scheduler& scheduler, const Fleet& fleet, AuditListener& listener)
      : scheduler_(scheduler), fleet_(fleet), listener_(listener) {}

  // Whether chance selects this row of a cascade for an audit if it ends early; deterministic for equal numbers.
  [[nodiscard]] static bool drawn(const Cascade& cascade, const flow::RowFacts& facts);

  // A selected row has been answered. If it ended early, its last stage may be asked; any answer adds to the sample.
  // `price`: the one in force.
  void hear(Row& row, const flow::Signals& signals, bool early, std::int32_t price, Effects& effects);
  // Audits some of the rows that got fewer tokens with all tokens, while there is time.
  void hear(const VisitCall& visit, Effects& effects);
  // Audits some rows through the most accurate way of their pipeline, if they took another one.
  void hear(const Row& row, Effects& effects);

  struct Result {
    bool good = false;
    bool disagreed = false;
  };
  Result ended(Audit& audit);

  [[nodiscard]] const std::unordered_set<Audit*>& open() const { return open_; }
  [[nodiscard]] const Sample::Rows& sample(dispatch::VariantId cascade) const { return samples_.at(cascade).rows(); }
  void fill(v1::Stats* out, const ModelSpec* model) const;

 private:
  struct Watch {
    std::size_t content = 0;  // of the cascade or pipeline under test
    flow::DisagreementTest test;
    double may_differ = 0, accuracy = 0;  // sums
    std::uint64_t skipped = 0, failed = 0;
  };

  [[nodiscard]] bool full() const { return open_.size() >= kMostOpen; }
  [[nodiscard]] bool room_for(const Row& row) const;
  void ask_last(const Row& row, Effects& effects);
  void into_sample(const ModelSpec& cascade, std::shared_ptr<SampledRow> row);
  void begin(const Call& like, Audit::About about, const Row* row, std::string body, Effects& effects);
  Watch& at(const ModelSpec& of);
  void fill(v1::Audit* out, const ModelSpec& of) const;

  const dispatch::Scheduler& scheduler_;
  const Fleet& fleet_;
  AuditListener& listener_;
  std::unordered_set<Audit*> open_;
  std::array<Watch, dispatch::kVariants> watches_;
  std::array<Sample, dispatch::kVariants> samples_;  // by the variant of a cascade
  std::uint64_t answered_ = 0;                       // rows of pipelines, some of which are asked again
  std::uint64_t fewer_tokens_ = 0;                   // answers with fewer tokens, some of which are asked again
};

}  // namespace arlo::gateway
