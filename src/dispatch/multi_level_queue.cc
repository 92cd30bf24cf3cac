#include "dispatch/multi_level_queue.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace arlo::dispatch {

RuntimeId MultiLevelQueue::add_runtime(const RuntimeSpec& spec, std::int32_t* new_level) {
  const auto runtime = static_cast<RuntimeId>(parts_.size());
  Bundle bundle(runtime, CostModel(spec));  // first: it may throw
  const VariantId variant = spec.variant;
  const std::int32_t max_length = spec.max_length;

  const auto above = std::find_if(levels_.begin(), levels_.end(), [&](const Level& l) {
    return l.variant > variant || (l.variant == variant && l.max_length >= max_length);
  });
  const auto level = static_cast<std::int32_t>(above - levels_.begin());
  const bool makes_level = above == levels_.end() || above->variant != variant || above->max_length != max_length;
  *new_level = makes_level ? level : -1;
  if (makes_level) {
    levels_.insert(above, {max_length, above == levels_.end() ? groups() : above->first_group, variant});
    for (Group& g : groups_) g.level += g.level >= level ? 1 : 0;
    for (Held& held : held_) held.level += held.level >= level ? 1 : 0;
    index_levels();
  }
  const auto held = static_cast<std::uint32_t>(held_.size());
  held_.push_back({variant, level, kNone, spec.capacity, std::move(bundle)});
  parts_.push_back({held, 1});
  add_to_level(held, makes_level);
  return runtime;
}

RuntimeId MultiLevelQueue::add_bundle(const std::vector<RuntimeId>& runtimes) {
  const auto id = static_cast<RuntimeId>(parts_.size());
  const auto first = static_cast<std::uint32_t>(held_.size());
  for (VariantId variant = 0; variant < variants(); ++variant) {
    std::vector<Bundle::Member> members;
    for (const RuntimeId runtime : runtimes) {
      const Held& one = held(runtime).front();
      if (one.variant == variant) members.push_back({runtime, one.bundle.members().front().cost});
    }
    if (members.empty()) continue;
    Bundle bundle(std::move(members));
    const std::int32_t longest = bundle.longest();
    const std::int32_t capacity = held(bundle.of(longest).runtime).front().capacity;
    held_.push_back({variant, ideal(variant, longest), kNone, capacity, std::move(bundle)});
  }
  parts_.push_back({first, static_cast<std::uint32_t>(held_.size()) - first});
  for (std::uint32_t held = first; held < held_.size(); ++held) add_to_level(held, false);
  return id;
}

void MultiLevelQueue::add_to_level(std::uint32_t held, bool is_new) {
  const std::int32_t level = held_[held].level;
  GroupIndex group = this->level(level).first_group;
  if (!is_new && group_by_runtime_) {  // after the others of the level
    group = level + 1 < levels() ? this->level(level + 1).first_group : groups();
  }
  if (is_new || group_by_runtime_) {
    for (auto l = static_cast<std::size_t>(level) + 1; l < levels_.size(); ++l) ++levels_[l].first_group;
    insert_group(group, level, held);
  }
  held_[held].group = group;
}

void MultiLevelQueue::insert_group(GroupIndex at, std::int32_t level, std::uint32_t held) {
  groups_.insert(groups_.begin() + at, {.heap = {}, .level = level, .held = held});
  heads_.insert(heads_.begin() + at, {kNobody, kNone});
  for (Held& h : held_) h.group += h.group != kNone && h.group >= at ? 1 : 0;
  index_active();
}

void MultiLevelQueue::index_levels() {
  bands_.assign(levels_.back().variant + std::size_t{1}, Band{});
  positions_.resize(std::max(positions_.size(), bands_.size()));
  for (HeapPositions& positions : positions_) positions.resize(instances_.size());
  level_of_length_.clear();
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    Band& band = bands_[levels_[l].variant];
    if (band.longest == 0) band = {static_cast<std::int32_t>(l), 0, 0, level_of_length_.size()};
    band.end = static_cast<std::int32_t>(l) + 1;
    band.longest = levels_[l].max_length;
    level_of_length_.resize(band.lengths + static_cast<std::size_t>(levels_[l].max_length) + 1,
                            static_cast<std::uint16_t>(l));
  }
}

void MultiLevelQueue::index_active() {
  fitting_.assign(groups_.size(), groups());
  after_.assign(groups_.size(), groups());
  for (GroupIndex g = groups(); g-- > 0;) {
    const bool another = g + 1 < groups() && level(groups_[g + 1].level).variant == level(groups_[g].level).variant;
    if (another) after_[g] = fitting_[g + 1];
    fitting_[g] = groups_[g].heap.empty() ? after_[g] : g;
  }
  reach_.assign(levels_.size(), Reach{});
  for (const Group& group : groups_) {
    reach_[static_cast<std::size_t>(group.level)].active += static_cast<std::int32_t>(group.heap.size());
  }
  for (std::int32_t l = 0; l < levels(); ++l) {
    const GroupIndex g = first_fitting(l);
    const bool below = l > first_of(level(l).variant) && !has_active(l - 1);
    reach_[static_cast<std::size_t>(l)].home = g == groups() ? levels() : groups_[g].level;
    reach_[static_cast<std::size_t>(l)].lowest = below ? lowest_at(l - 1) : l;
  }
}

InstanceId MultiLevelQueue::add_instance(RuntimeId runtime, std::int32_t limit) {
  InstanceId id = ids_end();
  if (free_ids_.empty()) {
    instances_.emplace_back();
    for (HeapPositions& positions : positions_) positions.push_back(0);
  } else {
    std::pop_heap(free_ids_.begin(), free_ids_.end(), std::greater<>());
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  Instance& x = instances_[id];
  x = {};
  x.limit = limit;
  x.runtime = runtime;
  x.first_held = parts_[runtime].first;
  x.holds = static_cast<std::uint16_t>(parts_[runtime].count);
  x.capacity = held(x).front().capacity;
  for (const Held& held : held(x)) x.capacity = std::min(x.capacity, held.capacity);
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
  for (const Held& held : held(instances_[id])) {
    groups_[held.group].heap.push(positions_[held.variant], id, key);
    head_changed(held.group);
  }
  count(id, 1);
}

void MultiLevelQueue::deactivate(InstanceId id) {
  for (const Held& held : held(instances_[id])) {
    groups_[held.group].heap.erase(positions_[held.variant], id);
    head_changed(held.group);
  }
  count(id, -1);
}

void MultiLevelQueue::count(InstanceId id, std::int32_t change) {
  const std::span<const Held> all = held(instances_[id]);
  for (const Held& one : all) {
    if (all.size() > 1) mixed_[one.variant] += change;
    for (const Held& other : all) with_[std::size_t{one.variant} * kVariants + other.variant] += change;
  }
}

void MultiLevelQueue::head_changed(GroupIndex g) {
  const IndexedHeap& heap = groups_[g].heap;
  heads_[g] = heap.empty() ? IndexedHeap::Entry{kNobody, kNone} : heap.top();
  index_active();
}

}  // namespace arlo::dispatch
