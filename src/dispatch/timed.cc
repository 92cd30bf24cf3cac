#include "dispatch/timed.h"

#include <algorithm>

namespace arlo::dispatch::timed {

void put_off(MultiLevelQueue& queue, GroupIndex g, const RequestSlab& requests, const Rule& rule, TimeNs now) {
  for (Key key = queue.head(g).key & ~kFull; key > kIdle && key <= kOrigin + static_cast<Key>(now);
       key = queue.head(g).key & ~kFull) {
    const InstanceId id = queue.head(g).id;
    Instance& x = queue[id];
    const TimeNs current = x.started.empty() ? 0 : requests[x.started.head].share;
    x.free = now + std::max<TimeNs>(now - x.first, 1) + (x.work - current);
    queue.update(id, rule.key(x));
  }
}

}  // namespace arlo::dispatch::timed
