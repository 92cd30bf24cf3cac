// The policies by name, and the rules of those that bind on arrival. All but eft choose by the number of outstanding
// requests (started plus bound) of the instances.
//
// Load within a level is congestion, outstanding / M, by Algorithm 1 line 9. Where all instances of a level have one M,
// as in the paper, that is the order of outstanding requests. M differs within a level when runtimes of one max_length
// do (device types); the head is then the instance with the lowest congestion, which is what line 10 tests.
#include "dispatch/policies/policies.h"

#include <bit>

#include "dispatch/policies/early_binding.h"
#include "dispatch/timed.h"

namespace arlo::dispatch {
namespace {

double congestion(const Instance& x) { return static_cast<double>(x.outstanding()) / static_cast<double>(x.capacity); }

// Non-negative doubles keep their order as integers.
Key key_of(double value) { return std::bit_cast<Key>(value); }

// Algorithm 1 (section 3.4). Candidates are the levels from the ideal one upwards *that have active instances*: the
// paper deploys each runtime at all times, here a level may be empty. The first `max_peek` of them are looked at; the
// first whose head has a congestion below the threshold takes the request, and the threshold decays by alpha from one
// to the next; when none has, the first candidate does.
class Rs final : public Rule {
 public:
  explicit Rs(const Options& options) : lambda_(options.lambda), alpha_(options.alpha), max_peek_(options.max_peek) {}

  Key key(const Instance& x) const override { return key_of(congestion(x)); }

  GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t, TimeNs) override {
    const GroupIndex end = queue.groups();
    const GroupIndex first = queue.first_fitting(level);
    double threshold = lambda_;
    GroupIndex g = first;
    for (std::int32_t peeked = 0; g != end && peeked < max_peek_; ++peeked) {
      if (std::bit_cast<double>(queue.head(g).key) < threshold) return g;
      threshold *= alpha_;
      g = queue.next_fitting(g);
    }
    return first;
  }

 private:
  double lambda_;
  double alpha_;
  std::int32_t max_peek_;
};

// Intra-group load balance (section 5.2.3): the least padding, that is the shortest level with active instances that
// fits; in it the least loaded.
class Ilb final : public Rule {
 public:
  Key key(const Instance& x) const override { return key_of(congestion(x)); }

  GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t, TimeNs) override {
    return queue.first_fitting(level);
  }
};

GroupIndex least_head(const MultiLevelQueue& queue, std::int32_t level) {
  GroupIndex best = queue.first_fitting(level);
  for (GroupIndex g = best; g != queue.groups(); g = queue.next_fitting(g)) {
    if (queue.head(g).key < queue.head(best).key) best = g;
  }
  return best;
}

// Inter-groups greedy (section 5.2.3): the fewest outstanding requests over all levels that fit, ties to the lower
// level. It counts requests and not congestion, as the paper's Fig. 4 does. `uniform`, for clusters of one max_length
// (the paper's ST and DT, section 5), is the same rule over one level.
class Ig final : public Rule {
 public:
  Key key(const Instance& x) const override { return static_cast<Key>(x.outstanding()); }

  GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t, TimeNs) override {
    return least_head(queue, level);
  }
};

// INFaaS's dispatching as the paper describes it (sections 2.3 and 5): bin packing over the instances that fit. The
// one with the highest congestion below 1 takes the request, ties to the lower level; when all have reached their
// capacity the one with the lowest congestion. (INFaaS itself chooses among variants by cost; not modelled.)
class Infaas final : public Rule {
 public:
  Key key(const Instance& x) const override {
    const double load = congestion(x);
    return key_of(load < 1.0 ? 1.0 - load : 1.0 + load);  // below capacity (0, 1], fullest first; saturated from 2
  }

  GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t, TimeNs) override {
    return least_head(queue, level);
  }
};

// eft: earliest expected finish (ours; the greedy rule of list scheduling on unrelated machines). Over all groups that
// fit: the head is the instance that will be free first, and the request would finish its own time alone after that.
// The earliest finish wins; ties go to the lower level, then to the lower id. Unlike `rs` it knows that a longer
// runtime is slower, and by how much; unlike `late` it binds on arrival and lives with its estimate.
class Eft final : public Rule {
 public:
  explicit Eft(const RequestSlab& requests) : requests_(requests) {}

  Key key(const Instance& x) const override { return timed::key_of(x); }

  GroupIndex pick(MultiLevelQueue& queue, std::int32_t level, std::int32_t length, TimeNs now) override {
    const GroupIndex end = queue.groups();
    GroupIndex best = end;
    TimeNs best_finish = kNever;
    for (GroupIndex g = queue.first_fitting(level); g != end; g = queue.next_fitting(g)) {
      timed::refresh(queue, g, requests_, *this, now);
      const IndexedHeap::Entry head = queue.head(g);
      const TimeNs alone = timed::paced(queue[head.id], queue.group_cost(g).alone(length));
      const TimeNs finish = timed::start_of(head.key, now) + alone;
      if (finish < best_finish || (finish == best_finish && same_level_lower_id(queue, g, best))) {
        best_finish = finish;
        best = g;
      }
    }
    return best;
  }

 private:
  static bool same_level_lower_id(const MultiLevelQueue& queue, GroupIndex g, GroupIndex best) {
    return queue.group(g).level == queue.group(best).level && queue.head(g).id < queue.head(best).id;
  }

  const RequestSlab& requests_;
};

}  // namespace

PolicyNeeds needs_of(Policy policy) {
  return {.times = policy == Policy::kEft || policy == Policy::kLate, .one_length = policy == Policy::kUniform};
}

std::unique_ptr<Rule> make_rule(State& state) {
  switch (state.options.policy) {
    case Policy::kIlb:
      return std::make_unique<Ilb>();
    case Policy::kIg:
    case Policy::kUniform:
      return std::make_unique<Ig>();
    case Policy::kInfaas:
      return std::make_unique<Infaas>();
    case Policy::kEft:
      return std::make_unique<Eft>(state.requests);
    case Policy::kLate:
      return make_late(state);
    default:
      return std::make_unique<Rs>(state.options);
  }
}

std::unique_ptr<Binding> Rule::make_binding(const Parts& parts) { return std::make_unique<EarlyBinding>(parts, *this); }

}  // namespace arlo::dispatch
