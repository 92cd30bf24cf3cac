// The rows: from the request that brings them to the answer, through the request scheduler and the engines.
//
// All engines of the server are one bundle of one instance (docs/glossary.md): any of them may run next,
// `inflight_limit` batches at a time. An engine that is unloaded or put aside leaves the bundle; rows that need it wait
// for it, at most for the grace.
//
// Whose fault is a failure? A batch that fails is tried again by halves, until a row fails alone. Its engine is then
// put aside for a moment and the row goes to a longer one: when that one answers, the engine was at fault, and stays
// aside for longer and longer; when that one fails too, it was the row, which is answered with the error. Where no
// other engine fits, the row runs max_attempts times.
//
// No clock, no thread, no Triton: events come in with `now`, decisions go out as Effects. The host's lock covers it.
#ifndef ARLO_PLUGINS_SCHEDULER_DESK_H_
#define ARLO_PLUGINS_SCHEDULER_DESK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/scheduler.h"
#include "plugins/scheduler/call.h"
#include "plugins/scheduler/config.h"

namespace arlo::triton {

// Work to be done once the lock is released.
struct Effects {
  dispatch::Actions actions;  // of the scheduler, not yet turned into the effects below
  std::vector<Batch*> starts;
  std::vector<Batch*> cancels;  // no client waits for them any more; done under the lock
  std::vector<Call*> answers;
  struct Note {
    bool warning;
    std::string text;
  };
  std::vector<Note> notes;  // for the log
};

// Counts of rows by engine; all only grow.
struct EngineCounts {
  std::uint64_t rows = 0;
  std::uint64_t batches = 0;
  std::uint64_t failed_batches = 0;
  std::uint64_t demoted_rows = 0;
  std::uint64_t tokens = 0;           // of the rows
  std::uint64_t computed_tokens = 0;  // padding included
  std::uint64_t wait_us = 0;          // of the rows, from their arrival to their start
};

// Single values for histograms, by engine, since they were last taken.
struct EngineSamples {
  std::vector<double> batch_rows;  // of each batch
  std::vector<double> wait_s;      // of each row
};

class Desk {
 public:
  // `config` must outlive it.
  explicit Desk(const LogicalConfig& config);

  void Submit(Call& call, TimeNs now, Effects& effects);
  // The execution of a batch is over; `why` where it is not kGood. The batch is not used any more.
  void Answered(Batch& batch, Reply reply, const std::string& why, TimeNs now, Effects& effects);
  // Which engines are loaded, as the server says, by index.
  void Loaded(const std::vector<bool>& loaded, TimeNs now, Effects& effects);
  // Ends all calls: the server stops, and its engines take nothing more.
  void Stop(TimeNs now, Effects& effects);
  // Handles changes by time alone: deadlines, clients that gave up, engines that were put aside.
  void Tick(TimeNs now, Effects& effects);
  // Set by the host; also asked before a row starts, so that no row starts whose client has gone.
  std::function<bool(const Call&)> given_up = [](const Call&) { return false; };

  [[nodiscard]] const std::vector<EngineCounts>& counts() const { return counts_; }
  [[nodiscard]] std::vector<EngineSamples> TakeSamples();
  [[nodiscard]] bool usable(std::size_t engine) const { return (mask_ >> engine & 1) != 0; }
  [[nodiscard]] std::int32_t queued() const { return scheduler_.queued(); }

 private:
  struct Engine {
    dispatch::RuntimeId runtime = dispatch::kNone;
    bool loaded = false;
    TimeNs aside_until = 0;  // 0: it is not put aside
    TimeNs backoff = 0;      // of the next time that it is
    std::string last_error;
  };

  void Regroup(TimeNs now, Effects& effects);
  void PutAside(std::size_t engine, TimeNs now, Effects& effects);
  void Settle(TimeNs now, Effects& effects);
  std::size_t Begin(std::size_t at, TimeNs now, Effects& effects);
  void Conclude(Row& row, Batch& batch, Reply reply, const std::string& why, TimeNs now, Effects& effects);
  void Fail(Call& call, Fault fault, TimeNs now, Effects& effects);
  void End(Row& row, TimeNs now, Effects& effects);
  void Expired(Row& row, TimeNs now, Effects& effects);
  void CheckUnfit(TimeNs now, Effects& effects);
  [[nodiscard]] Fault Refusal(const Row& row, const dispatch::Admitted& admitted, TimeNs now) const;
  [[nodiscard]] Fault NoEngine(std::int32_t length) const;

  const LogicalConfig& config_;
  dispatch::Scheduler scheduler_;
  std::vector<Engine> engines_;
  std::vector<std::size_t> by_runtime_;  // engine of a RuntimeId that is no bundle
  std::map<std::uint64_t, dispatch::RuntimeId> bundles_;
  std::uint64_t mask_ = 0;  // engines in service
  dispatch::InstanceId instance_ = dispatch::kNone;
  bool stopping_ = false;
  std::set<Call*> open_;
  std::set<Batch*> running_;
  Call* look_ = nullptr;                                         // the last look at open calls was at this one
  std::vector<std::pair<Row*, dispatch::RequestHandle>> batch_;  // that is being started
  std::vector<EngineCounts> counts_;
  std::vector<EngineSamples> samples_;
};

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_SCHEDULER_DESK_H_
