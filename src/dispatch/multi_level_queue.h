// The multi-level queue of section 3.4: levels by max_length, and in each the instances in a heap, best first.
//
// "Best" is the policy's word: it gives each instance a key. The instances of a level share one heap, or, for policies
// that weigh execution times, one heap for each runtime, for within one level two runtimes may differ in speed. Such a
// set is a *group* here; groups are ordered by level, then by runtime, so that "all instances that fit" is a suffix.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "dispatch/cost_model.h"
#include "dispatch/indexed_heap.h"
#include "dispatch/request.h"
#include "dispatch/scheduler.h"

namespace arlo::dispatch {

using Key = std::uint64_t;
using GroupIndex = std::uint32_t;

inline constexpr std::uint32_t kUsualPace = 8;  // Instance::pace_step of a pace of 1

inline constexpr Key kNobody = std::numeric_limits<Key>::max();  // key of the head of an empty group

// What policies that count requests touch comes first: one cache line.
struct alignas(64) Instance {
  std::int32_t in_flight = 0;  // batches started, not finished
  std::int32_t queued = 0;     // bound, not started
  std::int32_t limit = 0;      // of in_flight
  std::int32_t capacity = 0;   // M
  GroupIndex group = 0;
  std::int32_t level = 0;
  RuntimeId runtime = 0;
  Fifo waiting;             // bound, not started; by rank
  Fifo started;             // by start
  std::int32_t passed = 0;  // turns in a row that went to another line than its own (late)
  std::int32_t owed = 0;    // starts since one that is overdue, while such ones wait
  InstanceState state = InstanceState::kActive;
  bool present = false;
  std::uint32_t pace_step = kUsualPace;  // the pace in quarters of a doubling
  // What is expected of its times; see timed.h.
  TimeNs work = 0;                 // sum of the shares of all its requests
  TimeNs free = 0;                 // when it is expected to be free; 0 when it has no request
  TimeNs first = 0;                // the same before it was put off because the instance was overdue
  TimeNs since = 0;                // when it last made progress, or got something to do
  double pace = 1;                 // on the times of the latency profile
  double took = 0;                 // faded sums that the pace comes from, ns
  double expected = 0;             //
  std::int32_t batch_rows = 0;     // of the batch whose rows end now
  std::int32_t batch_longest = 0;  // tokens
  TimeNs batch_took = 0;
  TimeNs batch_ended = 0;

  [[nodiscard]] std::int32_t outstanding() const { return in_flight + queued; }
  [[nodiscard]] bool has_room() const { return in_flight < limit; }
  // Nothing is sent ahead for what is overdue: of the limit, half executes and half waits at the worker.
  [[nodiscard]] bool idles() const { return queued == 0 && in_flight < (limit + 1) / 2; }
};

class MultiLevelQueue {
 public:
  struct Level {
    std::int32_t max_length;
    GroupIndex first_group;
  };
  struct Group {
    IndexedHeap heap;
    std::int32_t level;
    RuntimeId runtime;    // the first one of the group
    double took = 0;      // faded sums of what its instances took, ns, and of what the latency profile says
    double expected = 0;  //
    // Of all its instances: what a time of the profile comes to.
    [[nodiscard]] TimeNs paced(TimeNs time) const {
      return expected == 0 ? time : static_cast<TimeNs>(took / expected * static_cast<double>(time));
    }
  };

  explicit MultiLevelQueue(bool group_by_runtime) : group_by_runtime_(group_by_runtime) {}

  // The spec has been checked. Sets `*new_level` to the level that was made, -1 when there was one.
  RuntimeId add_runtime(const RuntimeSpec& spec, std::int32_t* new_level);
  // Of runtimes that are there, none of them a bundle; checked.
  RuntimeId add_bundle(const std::vector<RuntimeId>& runtimes);

  // Levels.
  [[nodiscard]] std::int32_t levels() const { return static_cast<std::int32_t>(levels_.size()); }
  [[nodiscard]] const Level& level(std::int32_t level) const { return levels_[static_cast<std::size_t>(level)]; }
  [[nodiscard]] std::int32_t longest() const { return levels_.empty() ? 0 : levels_.back().max_length; }
  // The ideal level of a length in 1 to longest().
  [[nodiscard]] std::int32_t ideal(std::int32_t length) const {
    return level_of_length_[static_cast<std::size_t>(length)];
  }
  // The smallest level at or above `level` with active instances; levels() when there is none.
  [[nodiscard]] std::int32_t home(std::int32_t level) const {
    const GroupIndex g = next_active(this->level(level).first_group);
    return g == groups() ? levels() : groups_[g].level;
  }
  // The lowest level whose home is `home`, which has active instances.
  [[nodiscard]] std::int32_t lowest_at(std::int32_t home) const {
    while (home > 0 && !has_active(home - 1)) --home;
    return home;
  }
  [[nodiscard]] bool has_active(std::int32_t level) const {
    const GroupIndex g = first_fitting(level);
    return g != groups() && groups_[g].level == level;
  }
  [[nodiscard]] std::int32_t active_in(std::int32_t level) const;  // instances
  // Some active instance other than `id` fits the level.
  [[nodiscard]] bool another_fits(std::int32_t level, InstanceId id) const {
    for (GroupIndex g = first_fitting(level); g != groups(); g = next_active(g + 1)) {
      if (groups_[g].heap.size() > (instances_[id].group == g ? 1U : 0U)) return true;
    }
    return false;
  }

  // Groups.
  [[nodiscard]] GroupIndex groups() const { return static_cast<GroupIndex>(groups_.size()); }
  [[nodiscard]] const Group& group(GroupIndex g) const { return groups_[g]; }
  [[nodiscard]] Group& group(GroupIndex g) { return groups_[g]; }
  [[nodiscard]] const IndexedHeap::Entry& head(GroupIndex g) const { return heads_[g]; }
  // First group at or after `g` with active instances; groups() when there is none. `g` may be groups().
  [[nodiscard]] GroupIndex next_active(GroupIndex g) const { return next_active_[g]; }
  [[nodiscard]] GroupIndex first_fitting(std::int32_t level) const {
    return next_active_[levels_[static_cast<std::size_t>(level)].first_group];
  }

  // Runtimes.
  [[nodiscard]] std::size_t runtimes() const { return costs_.size(); }
  [[nodiscard]] const Bundle& cost(RuntimeId runtime) const { return costs_[runtime]; }
  [[nodiscard]] const Bundle& group_cost(GroupIndex g) const { return costs_[groups_[g].runtime]; }

  // Instances. Ids are the smallest ones free.
  InstanceId add_instance(RuntimeId runtime, std::int32_t limit);
  void remove_instance(InstanceId id);  // must have been deactivated
  [[nodiscard]] Instance& operator[](InstanceId id) { return instances_[id]; }
  [[nodiscard]] const Instance& operator[](InstanceId id) const { return instances_[id]; }
  [[nodiscard]] bool present(InstanceId id) const { return id < instances_.size() && instances_[id].present; }
  [[nodiscard]] InstanceId ids_end() const { return static_cast<InstanceId>(instances_.size()); }
  [[nodiscard]] std::int32_t instances() const { return present_; }

  // Into and out of its heap.
  void activate(InstanceId id, Key key);
  void deactivate(InstanceId id);
  void update(InstanceId id, Key key) {
    const GroupIndex g = instances_[id].group;
    IndexedHeap& heap = groups_[g].heap;
    heap.update(positions_, id, key);
    heads_[g] = heap.top();
  }

 private:
  // The group of a new runtime of this level, which is the last one that was made.
  void add_to_level(RuntimeId runtime, std::int32_t level, bool is_new);
  void insert_group(GroupIndex at, std::int32_t level, RuntimeId runtime);
  void head_changed(GroupIndex g);
  void index_lengths();
  void index_active();

  bool group_by_runtime_;
  std::vector<Level> levels_;
  std::vector<Group> groups_;
  std::vector<IndexedHeap::Entry> heads_;  // copies of the heaps' heads, side by side for the scans
  std::vector<GroupIndex> next_active_;    // one more than groups
  std::vector<std::uint16_t> level_of_length_;
  std::vector<std::int32_t> capacities_;  // M, by runtime
  std::vector<Bundle> costs_;
  std::vector<GroupIndex> group_of_runtime_;
  std::vector<Instance> instances_;
  HeapPositions positions_;
  std::vector<InstanceId> free_ids_;  // a min-heap
  std::int32_t present_ = 0;
};

}  // namespace arlo::dispatch
