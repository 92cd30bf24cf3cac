// eft: earliest expected finish (ours; the greedy rule of list scheduling on unrelated machines).
//
// Over all groups that fit: the head is the instance that will be free first, and the request would finish its own time
// alone after that. The earliest finish wins; ties go to the lower level, then to the lower id. Unlike `rs` it knows
// that a longer runtime is slower, and by how much; unlike `late` it binds on arrival and lives with its estimate.
#include "dispatch/timed.h"

namespace arlo::dispatch {
namespace {

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

std::unique_ptr<Rule> make_eft(const RequestSlab& requests) { return std::make_unique<Eft>(requests); }

}  // namespace arlo::dispatch
