// The workers of a simulation and their lives: they start, join the scheduler, execute the rows that have reached them,
// drain, load another runtime, fail, and are gone.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dispatch/scheduler.h"
#include "simulate/agenda.h"
#include "simulate/requests.h"
#include "simulate/worker.h"

namespace arlo::simulate {

class Fleet {
 public:
  struct Runtime {
    ExecutionTimes times;
    std::int32_t max_length;
    std::int32_t max_batch;
    std::int32_t inflight_limit;
    bool dynamic;
    std::array<std::int32_t, dispatch::kVariants> longest;  // by variant, in tokens; 0: it holds none of it
    RuntimeView view;
  };

  // The scheduler's decisions are appended to `actions`.
  Fleet(dispatch::Scheduler& scheduler, dispatch::Actions& actions, Requests& requests, bool batching)
      : scheduler_(scheduler), actions_(actions), requests_(requests), batching_(batching) {}

  RuntimeId add_runtime(const RuntimeOptions& runtime);
  RuntimeId add_bundle(const std::vector<RuntimeId>& runtimes, std::int32_t inflight_limit);
  WorkerId add_worker(RuntimeId runtime, TimeNs at, TimeNs now);
  void replace(WorkerId id, RuntimeId runtime, TimeNs delay, TimeNs now);
  void remove(WorkerId id, TimeNs now);
  void fail(WorkerId id, TimeNs restart, TimeNs now);
  void slow(WorkerId id, double factor);

  // When the next one joins, and it does.
  [[nodiscard]] TimeNs next_join() { return joins_.next(workers_); }
  void join(TimeNs now);
  // A request of this worker has been answered: when it drains, it may be empty now.
  void answered(WorkerId id, TimeNs now);
  // A row is on its way to a worker.
  void send(WorkerId id, Inbox::Row row);
  // The event of a worker: its batch has ended, or (empty) a row has reached it while it was idle.
  const std::vector<Slot>& step(WorkerId id, TimeNs now);
  // The workers to which something has happened begin what they can. Runs at the end of every event.
  void begin(TimeNs now);

  [[nodiscard]] const Worker& operator[](WorkerId id) const { return workers_[id]; }
  [[nodiscard]] WorkerId at(dispatch::InstanceId instance) const { return by_instance_[instance]; }
  [[nodiscard]] std::size_t size() const { return workers_.size(); }
  [[nodiscard]] Runtime& runtime(RuntimeId id) { return runtimes_[id]; }
  [[nodiscard]] const Runtime& runtime(RuntimeId id) const { return runtimes_[id]; }
  [[nodiscard]] std::size_t runtimes() const { return runtimes_.size(); }
  void need_runtime(RuntimeId runtime) const;

  Steps steps;  // of the workers

 private:
  Worker& present(WorkerId id);
  void touch(WorkerId id);
  void begin(WorkerId id, TimeNs now);
  [[nodiscard]] bool joins(const Inbox::Row& next, const Inbox::Row& first, std::size_t rows, TimeNs now) const;
  // The batch that it executes has taken so long.
  void count_busy(Worker& worker, TimeNs took);
  void drain(WorkerId id, TimeNs now);
  // The last request of a draining worker is answered.
  void emptied(WorkerId id, TimeNs now);
  static void become(Worker& worker, WorkerState state, TimeNs now) {
    worker.state = state;
    worker.since = now;
  }

  dispatch::Scheduler& scheduler_;
  dispatch::Actions& actions_;
  Requests& requests_;
  bool batching_;  // batches are formed by the scheduler
  std::vector<WorkerId> touched_;
  std::vector<Slot> ended_;
  std::vector<Runtime> runtimes_;
  std::vector<Worker> workers_;
  std::vector<WorkerId> by_instance_;
  Joins joins_;
};

}  // namespace arlo::simulate
