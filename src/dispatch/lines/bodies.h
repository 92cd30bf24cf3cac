// Bodies: variants that are one network in several forms. Their rows wait in one line, that of the first, and a chooser
// decides about them (batch_chooser.h).
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "dispatch/batch_chooser.h"
#include "dispatch/request.h"
#include "dispatch/types.h"

namespace arlo::dispatch {

struct Body {
  std::vector<VariantId> variants;  // the quickest first, which is the line
  std::unique_ptr<BatchChooser> chooser;
};

class Bodies {
 public:
  // The body whose line this variant is; null: none.
  [[nodiscard]] Body* of(VariantId line) const { return any_ ? bodies_[line].get() : nullptr; }
  // Where rows of a variant wait: it may be one of a body.
  [[nodiscard]] VariantId line_of(VariantId variant) const { return any_ ? line_[variant] : variant; }

  // False: the body existed, and its chooser adopts the rules of this one.
  bool set(const std::vector<VariantId>& variants, std::unique_ptr<BatchChooser> chooser) {
    if (!any_) {
      for (VariantId v = 0; v < kVariants; ++v) line_[v] = v;
    }
    any_ = true;
    auto& body = bodies_[variants.front()];
    const bool follows = body != nullptr && body->chooser->follow(*chooser);
    if (follows) {
      body->variants = variants;
    } else {
      body = std::make_unique<Body>(Body{variants, std::move(chooser)});
    }
    for (const VariantId v : variants) line_[v] = variants.front();
    return !follows;
  }

  void clear(VariantId line) {
    if (of(line) == nullptr) return;
    bodies_[line].reset();
    for (VariantId& v : line_) v = v == line ? static_cast<VariantId>(&v - line_.data()) : v;
  }

  // A row arrives for the first time, with the facts that its Request does not hold.
  void arrived(const Arrival& arrival, std::int32_t level) const {
    const Body* const body = of(arrival.variant);
    if (body == nullptr) return;
    body->chooser->arrived(arrival.arrived, {.arrived = arrival.arrived,
                                             .utility = worth(arrival.utility),
                                             .kind = arrival.kind,
                                             .length = arrival.length,
                                             .level = level});
  }
  void note(RequestHandle h, const Arrival& arrival) {
    if (of(arrival.variant) == nullptr) return;
    facts(h) = {arrival.arrived, worth(arrival.utility), arrival.kind};
  }
  // It came before there was the body.
  void forget(RequestHandle h) { facts(h) = {}; }
  // It waits in its line from now on. Retried rows are not chosen: they go first (scheduler.h).
  void add(const Request& r, RequestHandle h, std::int32_t level) {
    const Body* const body = of(r.variant());
    if (body == nullptr || (r.rank & kFirstTry) == 0) return;
    const Facts& facts = facts_[h];
    // A finish before the limit is wanted, and one at it is on time here.
    const TimeNs limit = r.limit();
    body->chooser->add({.id = h,
                        .arrived = facts.arrived,
                        .deadline = limit == kNever ? kNever : limit + 1,
                        .utility = facts.utility,
                        .kind = facts.kind,
                        .length = r.length,
                        .level = level});
  }
  void remove(const Request& r, RequestHandle h) const {
    if (const Body* const body = of(r.variant())) body->chooser->remove(h);
  }

 private:
  // Rows worth nothing are still answered, after all others.
  static double worth(double utility) { return std::max(utility, 1e-9); }

  struct Facts {
    TimeNs arrived = 0;
    double utility = 1;
    std::uint32_t kind = 0;
  };
  Facts& facts(RequestHandle h) {
    if (facts_.size() <= h) facts_.resize(h + 1);
    return facts_[h];
  }

  bool any_ = false;
  std::array<std::unique_ptr<Body>, kVariants> bodies_;  // by their lines
  std::array<VariantId, kVariants> line_{};
  std::vector<Facts> facts_;  // by handle
};

}  // namespace arlo::dispatch
