#include "dispatch/multi_level_queue.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace arlo::dispatch {

RuntimeId MultiLevelQueue::add_runtime(const RuntimeSpec& spec, std::int32_t* new_level) {
  const auto runtime = static_cast<RuntimeId>(costs_.size());
  costs_.emplace_back(runtime, CostModel(spec));  // first: it may throw
  capacities_.push_back(spec.capacity);
  const std::int32_t max_length = spec.max_length;

  const auto above = std::lower_bound(levels_.begin(), levels_.end(), max_length,
                                      [](const Level& l, std::int32_t length) { return l.max_length < length; });
  const auto level = static_cast<std::int32_t>(above - levels_.begin());
  const bool makes_level = above == levels_.end() || above->max_length != max_length;
  *new_level = makes_level ? level : -1;
  if (makes_level) {
    levels_.insert(above, {max_length, above == levels_.end() ? groups() : above->first_group});
    for (Group& g : groups_) g.level += g.level >= level ? 1 : 0;
    for (Instance& x : instances_) x.level += x.level >= level ? 1 : 0;
    index_lengths();
  }
  add_to_level(runtime, level, makes_level);
  return runtime;
}

RuntimeId MultiLevelQueue::add_bundle(const std::vector<RuntimeId>& runtimes) {
  const auto id = static_cast<RuntimeId>(costs_.size());
  std::vector<Bundle::Member> members;
  members.reserve(runtimes.size());
  for (const RuntimeId runtime : runtimes) members.push_back({runtime, costs_[runtime].members().front().cost});
  Bundle bundle(std::move(members));
  const std::int32_t longest = bundle.longest();
  capacities_.push_back(capacities_[bundle.of(longest).runtime]);
  costs_.push_back(std::move(bundle));
  add_to_level(id, ideal(longest), false);
  return id;
}

void MultiLevelQueue::add_to_level(RuntimeId runtime, std::int32_t level, bool is_new) {
  GroupIndex group = this->level(level).first_group;
  if (!is_new && group_by_runtime_) {  // after the others of the level
    group = level + 1 < levels() ? this->level(level + 1).first_group : groups();
  }
  if (is_new || group_by_runtime_) {
    insert_group(group, level, runtime);
    for (auto l = static_cast<std::size_t>(level) + 1; l < levels_.size(); ++l) ++levels_[l].first_group;
  }
  group_of_runtime_.push_back(group);
}

void MultiLevelQueue::insert_group(GroupIndex at, std::int32_t level, RuntimeId runtime) {
  groups_.insert(groups_.begin() + at, {.heap = {}, .level = level, .runtime = runtime});
  heads_.insert(heads_.begin() + at, {kNobody, kNone});
  for (GroupIndex& g : group_of_runtime_) g += g >= at ? 1 : 0;
  for (Instance& x : instances_) x.group += x.group >= at ? 1 : 0;
  index_active();
}

void MultiLevelQueue::index_lengths() {
  level_of_length_.clear();
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    level_of_length_.resize(static_cast<std::size_t>(levels_[l].max_length) + 1, static_cast<std::uint16_t>(l));
  }
}

void MultiLevelQueue::index_active() {
  next_active_.assign(groups_.size() + 1, groups());
  for (GroupIndex g = groups(); g-- > 0;) next_active_[g] = groups_[g].heap.empty() ? next_active_[g + 1] : g;
}

std::int32_t MultiLevelQueue::active_in(std::int32_t level) const {
  std::size_t active = 0;
  for (GroupIndex g = this->level(level).first_group; g < groups() && groups_[g].level == level; ++g) {
    active += groups_[g].heap.size();
  }
  return static_cast<std::int32_t>(active);
}

InstanceId MultiLevelQueue::add_instance(RuntimeId runtime, std::int32_t limit) {
  InstanceId id = ids_end();
  if (free_ids_.empty()) {
    instances_.emplace_back();
    positions_.push_back(0);
  } else {
    std::pop_heap(free_ids_.begin(), free_ids_.end(), std::greater<>());
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  Instance& x = instances_[id];
  x = {};
  x.limit = limit;
  x.capacity = capacities_[runtime];
  x.runtime = runtime;
  x.group = group_of_runtime_[runtime];
  x.level = groups_[x.group].level;
  x.present = true;
  ++present_;
  return id;
}

void MultiLevelQueue::remove_instance(InstanceId id) {
  instances_[id].present = false;
  --present_;
  free_ids_.push_back(id);
  std::push_heap(free_ids_.begin(), free_ids_.end(), std::greater<>());
}

void MultiLevelQueue::activate(InstanceId id, Key key) {
  const GroupIndex g = instances_[id].group;
  groups_[g].heap.push(positions_, id, key);
  head_changed(g);
}

void MultiLevelQueue::deactivate(InstanceId id) {
  const GroupIndex g = instances_[id].group;
  groups_[g].heap.erase(positions_, id);
  head_changed(g);
}

void MultiLevelQueue::head_changed(GroupIndex g) {
  const IndexedHeap& heap = groups_[g].heap;
  heads_[g] = heap.empty() ? IndexedHeap::Entry{kNobody, kNone} : heap.top();
  index_active();
}

}  // namespace arlo::dispatch
