// The multi-level queue of section 3.4: levels by max_length, and in each the instances in a heap, best first. Several
// variants have their levels one after the other.
//
// "Best" is the policy's word: it gives each instance a key. The instances of a level share one heap, or, for policies
// that weigh execution times, one heap for each runtime, for within one level two runtimes may differ in speed. Such a
// set is a *group* here; groups are ordered by level, then by runtime, so that "all instances that fit" is a suffix of
// the variant's groups. An instance that holds several variants is in a group of each.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dispatch/cost_model.h"
#include "dispatch/indexed_heap.h"
#include "dispatch/request.h"
#include "dispatch/types.h"

namespace arlo::dispatch {

using Key = std::uint64_t;
using GroupIndex = std::uint32_t;

inline constexpr std::uint32_t kUsualPace = 8;  // Instance::pace_step of a pace of 1

inline constexpr Key kNobody = std::numeric_limits<Key>::max();  // key of the head of an empty group

// The fields used by policies that count requests come first: one cache line.
struct alignas(64) Instance {
  std::int32_t in_flight = 0;  // batches started, not finished
  std::int32_t queued = 0;     // bound, not started
  std::int32_t limit = 0;      // of in_flight
  std::int32_t capacity = 0;   // M; the least of several variants
  RuntimeId runtime = 0;
  std::uint32_t first_held = 0;  // of what it holds, in MultiLevelQueue
  Fifo waiting;                  // bound, not started; by rank
  Fifo started;                  // by start
  std::int32_t passed = 0;       // turns in a row that went to another line than its own (late)
  std::int32_t owed = 0;         // starts since one that is overdue, while such ones wait
  std::uint16_t holds = 0;       // variants
  InstanceState state = InstanceState::kActive;
  bool present = false;
  std::uint32_t pace_step = kUsualPace;  // the pace in quarters of a doubling
  // Estimates of its times; see timed.h.
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
  // Overdue requests are not sent ahead: half of the limit executes and half waits at the worker.
  [[nodiscard]] bool idles() const { return queued == 0 && in_flight < (limit + 1) / 2; }
};

struct Level {
  std::int32_t max_length;
  GroupIndex first_group;
  VariantId variant;
};
// What an instance holds of a variant.
struct Held {
  VariantId variant;
  std::int32_t level;     // of the longest of it
  GroupIndex group;       // of that level
  std::int32_t capacity;  // M
  Bundle bundle;
};
struct Group {
  IndexedHeap heap;
  std::int32_t level;
  std::uint32_t held;   // what its first runtime holds of the variant
  double took = 0;      // faded sums of what its instances took, ns, and of what the latency profile says
  double expected = 0;  //
  // Of all its instances: what a time of the profile comes to.
  [[nodiscard]] TimeNs paced(TimeNs time) const {
    return expected == 0 ? time : static_cast<TimeNs>(took / expected * static_cast<double>(time));
  }
};

class MultiLevelQueue {
 public:
  explicit MultiLevelQueue(bool group_by_runtime) : group_by_runtime_(group_by_runtime) {}

  // The spec has been checked. Sets `*new_level` to the level that was made, -1 when there was one.
  RuntimeId add_runtime(const RuntimeSpec& spec, std::int32_t* new_level);
  // Of runtimes that are there, none of them a bundle; checked.
  RuntimeId add_bundle(const std::vector<RuntimeId>& runtimes);

  // Levels.
  [[nodiscard]] std::int32_t levels() const { return static_cast<std::int32_t>(levels_.size()); }
  [[nodiscard]] const Level& level(std::int32_t level) const { return levels_[static_cast<std::size_t>(level)]; }
  // Variants, with or without levels; those of one are from first_of() to before end_of().
  [[nodiscard]] VariantId variants() const { return static_cast<VariantId>(bands_.size()); }
  [[nodiscard]] std::int32_t first_of(VariantId variant) const { return bands_[variant].first; }
  [[nodiscard]] std::int32_t end_of(VariantId variant) const { return bands_[variant].end; }
  [[nodiscard]] std::int32_t longest(VariantId variant) const {
    return variant < bands_.size() ? bands_[variant].longest : 0;
  }
  // The ideal level of a length in 1 to longest().
  [[nodiscard]] std::int32_t ideal(VariantId variant, std::int32_t length) const {
    return level_of_length_[bands_[variant].lengths + static_cast<std::size_t>(length)];
  }
  // The smallest level of its variant at or above `level` with active instances; levels() when there is none.
  [[nodiscard]] std::int32_t home(std::int32_t level) const { return reach(level).home; }
  // The lowest level whose home is `home`, which has active instances.
  [[nodiscard]] std::int32_t lowest_at(std::int32_t home) const { return reach(home).lowest; }
  [[nodiscard]] bool has_active(std::int32_t level) const { return reach(level).active > 0; }
  [[nodiscard]] std::int32_t active_in(std::int32_t level) const { return reach(level).active; }  // instances
  // Some active instance other than `id` fits the level.
  [[nodiscard]] bool another_fits(std::int32_t level, InstanceId id) const {
    const Held* held = find(instances_[id], this->level(level).variant);
    const GroupIndex own = held == nullptr ? kNone : held->group;
    for (GroupIndex g = first_fitting(level); g != groups(); g = next_fitting(g)) {
      if (groups_[g].heap.size() > (own == g ? 1U : 0U)) return true;
    }
    return false;
  }

  // Groups.
  [[nodiscard]] GroupIndex groups() const { return static_cast<GroupIndex>(groups_.size()); }
  [[nodiscard]] const Group& group(GroupIndex g) const { return groups_[g]; }
  [[nodiscard]] Group& group(GroupIndex g) { return groups_[g]; }
  [[nodiscard]] const IndexedHeap::Entry& head(GroupIndex g) const { return heads_[g]; }
  // The first group with active instances that fits a level, and the next one after it; groups() when there is none.
  [[nodiscard]] GroupIndex first_fitting(std::int32_t level) const {
    return fitting_[levels_[static_cast<std::size_t>(level)].first_group];
  }
  [[nodiscard]] GroupIndex next_fitting(GroupIndex g) const { return after_[g]; }

  // Runtimes.
  [[nodiscard]] std::size_t runtimes() const { return parts_.size(); }
  [[nodiscard]] std::span<const Held> held(RuntimeId runtime) const {
    return {&held_[parts_[runtime].first], parts_[runtime].count};
  }
  [[nodiscard]] std::span<const Held> held(const Instance& x) const { return {&held_[x.first_held], x.holds}; }
  // What an instance holds of a variant; null for nothing.
  [[nodiscard]] const Held* find(const Instance& x, VariantId variant) const {
    const Held* at = &held_[x.first_held];
    for (const Held* const end = at + x.holds; at != end; ++at) {
      if (at->variant == variant) return at;
    }
    return nullptr;
  }
  // That of a variant that it holds.
  [[nodiscard]] const Held& held(const Instance& x, VariantId variant) const { return *find(x, variant); }
  [[nodiscard]] const Bundle& cost(const Instance& x, VariantId variant) const { return held(x, variant).bundle; }
  [[nodiscard]] const Held& group_held(GroupIndex g) const { return held_[groups_[g].held]; }
  [[nodiscard]] const Bundle& group_cost(GroupIndex g) const { return group_held(g).bundle; }
  [[nodiscard]] bool covers(const Instance& x, std::int32_t level) const {
    const Held* held = find(x, this->level(level).variant);
    return held != nullptr && held->level >= level;
  }
  [[nodiscard]] bool is_bundle(RuntimeId runtime) const {
    return held(runtime).front().bundle.members().front().runtime != runtime;
  }

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
    for (const Held& held : held(instances_[id])) {
      IndexedHeap& heap = groups_[held.group].heap;
      heap.update(positions_[held.variant], id, key);
      heads_[held.group] = heap.top();
    }
  }
  // Active instances that hold a variant, and those that hold both of two.
  [[nodiscard]] std::int32_t with(VariantId variant) const { return with(variant, variant); }
  [[nodiscard]] std::int32_t with(VariantId one, VariantId other) const {
    return with_[std::size_t{one} * kVariants + other];
  }
  // Active instances that hold a variant and others.
  [[nodiscard]] std::int32_t mixed(VariantId variant) const { return mixed_[variant]; }

 private:
  // The levels of a variant.
  struct Band {
    std::int32_t first = 0;
    std::int32_t end = 0;
    std::int32_t longest = 0;  // tokens; 0: it has no level
    std::size_t lengths = 0;   // where its part of level_of_length_ begins
  };
  // Of a level, what follows from where active instances are.
  struct Reach {
    std::int32_t home = 0;
    std::int32_t lowest = 0;
    std::int32_t active = 0;
  };
  [[nodiscard]] const Reach& reach(std::int32_t level) const { return reach_[static_cast<std::size_t>(level)]; }
  // Finds or makes the group of entry `held`, the last one made.
  void add_to_level(std::uint32_t held, bool is_new);
  void insert_group(GroupIndex at, std::int32_t level, std::uint32_t held);
  void head_changed(GroupIndex g);
  void index_levels();
  void index_active();
  void count(InstanceId id, std::int32_t change);

  bool group_by_runtime_;
  std::vector<Level> levels_;
  std::vector<Group> groups_;
  std::vector<IndexedHeap::Entry> heads_;  // copies of the heaps' heads, side by side for the scans
  std::vector<GroupIndex> fitting_;        // by group: itself or the next one of its variant with active instances
  std::vector<GroupIndex> after_;          // the same without itself
  std::vector<Reach> reach_;               // by level
  std::vector<Band> bands_;                // by variant
  std::vector<std::uint16_t> level_of_length_;
  struct Parts {
    std::uint32_t first;
    std::uint32_t count;
  };
  std::vector<Parts> parts_;  // by runtime: what it holds, by variant
  std::vector<Held> held_;
  std::vector<Instance> instances_;
  std::vector<HeapPositions> positions_;  // by variant
  std::vector<std::int32_t> with_ = std::vector<std::int32_t>(std::size_t{kVariants} * kVariants);
  std::vector<std::int32_t> mixed_ = std::vector<std::int32_t>(kVariants);
  std::vector<InstanceId> free_ids_;  // a min-heap
  std::int32_t present_ = 0;
};

}  // namespace arlo::dispatch
