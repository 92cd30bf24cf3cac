// Late choice: variants that are one network at several token counts, a *body*. Rows of a body wait in one line, that
// of the variant with the fewest tokens, and which of the variants executes them is decided when an instance has room,
// for the whole batch (solve/tokens/chooser.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "dispatch/policies/timed.h"
#include "dispatch/request.h"
#include "dispatch/scheduler.h"
#include "solve/tokens/chooser.h"

namespace arlo::dispatch {

struct Body {
  Body(const TokenCounts& counts) : variants(counts.variants), chooser(counts.rules) {}

  std::vector<VariantId> variants;  // ascending by tokens; the first is the line
  solve::tokens::Chooser chooser;
  std::vector<std::size_t> last;  // by instance: the count of its last batch, + 1
};

class Bodies {
 public:
  // The body whose line this variant is; null: none.
  [[nodiscard]] Body* of(VariantId line) const { return any_ ? bodies_[line].get() : nullptr; }
  // Where rows of a variant wait: it may be one of a body.
  [[nodiscard]] VariantId line_of(VariantId variant) const { return any_ ? line_[variant] : variant; }

  void set(const TokenCounts& counts) {
    if (!any_) {
      for (VariantId v = 0; v < kVariants; ++v) line_[v] = v;
    }
    any_ = true;
    auto& body = bodies_[counts.variants.front()];
    if (body == nullptr) {
      body = std::make_unique<Body>(counts);
    } else {
      body->variants = counts.variants;
      body->chooser.set(counts.rules);
    }
    for (const VariantId v : counts.variants) line_[v] = counts.variants.front();
  }

  void clear(VariantId line) {
    if (of(line) == nullptr) return;
    bodies_[line].reset();
    for (VariantId& v : line_) v = v == line ? static_cast<VariantId>(&v - line_.data()) : v;
  }

  // One that waited before there was the body.
  void adopt(const Request& r, RequestHandle h, std::int32_t level) {
    if (facts_.size() <= h) facts_.resize(h + 1);
    facts_[h] = {};
    add(r, h, level);
  }
  // What a request of a body says beside its Request.
  void note(RequestHandle h, const Arrival& arrival) {
    if (of(arrival.variant) == nullptr) return;
    if (facts_.size() <= h) facts_.resize(h + 1);
    // What is worth nothing is answered all the same, after all others.
    facts_[h] = {arrival.arrived, std::max(arrival.utility, 1e-9), arrival.kind};
  }
  // It waits in its line from now on. What is retried is not chosen: it goes first (scheduler.h).
  void add(const Request& r, RequestHandle h, std::int32_t level) {
    Body* const body = of(r.variant());
    if (body == nullptr || (r.rank & kFirstTry) == 0) return;
    const Facts& facts = facts_[h];
    // A finish before the limit is wanted, and one at it is on time here.
    const TimeNs limit = r.limit();
    body->chooser.add({.id = h,
                       .arrived = facts.arrived,
                       .deadline = limit == kNever ? kNever : limit + 1,
                       .utility = facts.utility,
                       .kind = facts.kind,
                       .length = r.length,
                       .level = level});
  }
  void remove(const Request& r, RequestHandle h) const {
    if (Body* const body = of(r.variant())) body->chooser.remove(h);
  }

 private:
  struct Facts {
    TimeNs arrived = 0;
    double utility = 1;
    std::uint32_t kind = 0;
  };
  bool any_ = false;
  std::array<std::unique_ptr<Body>, kVariants> bodies_;  // by their lines
  std::array<VariantId, kVariants> line_{};
  std::vector<Facts> facts_;  // by handle
};

// What batches take on an instance.
class TimesOn final : public solve::tokens::Times {
 public:
  TimesOn(const MultiLevelQueue& queue, const Body& body, InstanceId id) : x_(queue[id]) {
    for (const VariantId v : body.variants) held_.push_back(queue.find(x_, v));
    last_ = id < body.last.size() ? body.last[id] : 0;
    // A rule that goes by the rate alone does not foresee it: else it would never pay it, and evict instead.
    const solve::tokens::Rules& rules = body.chooser.rules();
    switching_ = rules.policy == solve::tokens::Policy::kLoad ? 0 : rules.switching;
  }

  [[nodiscard]] const Bundle::Member* on(std::size_t count, std::int32_t length) const {
    const MultiLevelQueue::Held* held = held_[count];
    return held == nullptr || held->bundle.longest() < length ? nullptr : &held->bundle.of(length);
  }
  [[nodiscard]] TimeNs of(std::size_t count, std::int32_t length, std::int64_t rows) const override {
    const Bundle::Member* member = on(count, length);
    if (member == nullptr) return kNever;
    const TimeNs time = member->cost.at(length, static_cast<std::int32_t>(std::min<std::int64_t>(rows, kMaxBatch)));
    return timed::paced(x_, time) + (last_ != 0 && last_ != count + 1 ? switching_ : 0);
  }

 private:
  const Instance& x_;
  std::vector<const MultiLevelQueue::Held*> held_;  // by count; null: nothing
  std::size_t last_;
  TimeNs switching_;
};

}  // namespace arlo::dispatch
