// Audits: a small share of the rows is asked again the most accurate way, after the client has its answer, to see
// whether answers are as good as they should be. Of rows that a cascade answered early its last stage is asked, of rows
// that a pipeline answered otherwise than by its most accurate variants these are, and where fewer tokens answered, all
// of them.
//
// An audit is a request of the gateway's own: of the class bulk, one row, whole. It is in no books but those of the
// stage that had answered, and of the work that it makes.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "dispatch/scheduler.h"
#include "flow/rules/audit.h"
#include "gateway/desk/call.h"
#include "gateway/desk/effects.h"
#include "gateway/desk/sample.h"
#include "gateway/fleet/cascade.h"
#include "gateway/fleet/fleet.h"

namespace arlo::gateway {

class Audit;
class VisitCall;

class AuditListener {
 public:
  // It is over; nobody needs it any more.
  virtual void audit_done(Audit& audit) = 0;

 protected:
  ~AuditListener() = default;
};

class Audit final : public Call {
 public:
  // A label of a client's answer, and who is asked for it again.
  struct About {
    std::shared_ptr<const ModelSpec> of;     // whose answer it is: a cascade or a pipeline
    std::shared_ptr<const ModelSpec> asked;  // its last stage, the variant with all tokens, or the pipeline itself
    int logits = -1;                         // output of `asked` that says the label; -1: its answers do
    std::int32_t stage = 0;                  // that had answered,
    std::int32_t variant = -1;               // of it the one with fewer tokens; -1: it is not about tokens
    std::int32_t label = -1;
    std::size_t at = 0;                    // of a pipeline's answers to the row,
    std::size_t answers = 0;               // so many
    double accuracy = 0;                   // that was expected of them
    std::shared_ptr<SampledRow> sample{};  // that it goes into; null: none
  };

  // `like`: the call whose row it is about.
  Audit(AuditListener& listener, const Call& like, About about);

  // Its request, after the row has ended and before its call is let go; null: `body` has it. A fault: the model does
  // not take it.
  MaybeFault write(const Row* row);
  void complete() override { listener_.audit_done(*this); }

  // The logits of the answer; empty: there are none.
  [[nodiscard]] std::string_view logits() const;
  // The label that it says; -1: nothing of use.
  [[nodiscard]] std::int32_t answer() const;
  [[nodiscard]] const About& about() const { return about_; }
  [[nodiscard]] std::shared_ptr<SampledRow> take_sample() { return std::move(about_.sample); }

 private:
  AuditListener& listener_;
  About about_;
};

// Which rows are asked again, and whether what comes differs from the clients' answers more often than it may. Of a
// cascade that is what its operating point allows, of a pipeline what the accuracies expected of both answers do: one
// of two answers that differ is wrong. Token counts are compared, and not tested. Under the router's lock.
class Audits {
 public:
  static constexpr std::size_t kMostOpen = 32;

  Audits(const dispatch::Scheduler& scheduler, const Fleet& fleet, AuditListener& listener)
      : scheduler_(scheduler), fleet_(fleet), listener_(listener) {}

  // Whether there is one of this row of a cascade, if it ends early, by chance; the same for the same numbers.
  [[nodiscard]] static bool drawn(const Cascade& cascade, const flow::RowFacts& facts);

  // A row that was drawn has been answered: where it ends early its last stage may be asked, and by any it says
  // something for the sample. `price`: that is in force.
  void hear(Row& row, const flow::Signals& signals, bool early, std::int32_t price, Effects& effects);
  // Of all tokens, on some of the rows that got fewer, while there is time.
  void hear(const VisitCall& visit, Effects& effects);
  // Of the most accurate way through its pipeline, on some of the rows that took another one.
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
    std::size_t content = 0;  // of the cascade, or the pipeline, that the test is about
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
  std::uint64_t answered_ = 0;                       // rows of pipelines, of which some are asked again
  std::uint64_t fewer_tokens_ = 0;                   // answers, the same
};

}  // namespace arlo::gateway
