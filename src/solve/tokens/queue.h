// Batches of queries that are alike: OTAS, Algorithm 1. Pure; integers, for |1.1 - 0.6| > 0.5 holds in floats.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "base/time.h"
#include "dispatch/batch_chooser.h"

namespace arlo::solve::tokens {

// Queries of all kinds share batches, those of two levels of lengths do not. Ids are small numbers.
using Query = dispatch::WaitingRow;

struct Alike {
  TimeNs delta = 500'000'000;  // a batch takes queries this long after its first one
  std::size_t most = 64;       // epsilon: queries of a batch
  TimeNs eta = 500'000'000;    // its deadline and the query's may be this far apart
  double mu = 0.8;             // so may the utilities of its first query and the query
};

struct Waiting {
  std::vector<Query> rows;  // in order of arrival
  TimeNs arrived = 0;       // s_b: of the first
  TimeNs deadline = 0;      // d_b: the least
  double utility = 0;       // u_b: of the first
};

class Queue {
 public:
  explicit Queue(const Alike& alike) : alike_(alike) {}
  void set_alike(const Alike& alike) { alike_ = alike; }

  // Queries in order of arrival.
  void add(const Query& query) {
    ++size_;
    for (auto batch = batches_.end(); batch != batches_.begin();) {
      --batch;
      if (batch->arrived + alike_.delta < query.arrived) break;  // those before are older still
      if (batch->rows.size() >= alike_.most || batch->rows.front().level != query.level ||
          apart(batch->deadline, query.deadline) > alike_.eta || apart(batch->utility, query.utility) > alike_.mu) {
        continue;
      }
      batch->rows.push_back(query);
      if (query.deadline < batch->deadline) batch->deadline = query.deadline;
      note(query.id, batch);
      return;
    }
    batches_.push_back({{query}, query.arrived, query.deadline, query.utility});
    note(query.id, std::prev(batches_.end()));
  }

  // One that waits, or not: it leaves its batch. O(rows of the batch).
  void remove(dispatch::RequestHandle id) {
    if (id >= where_.size() || where_[id] == batches_.end()) return;
    const auto batch = where_[id];
    where_[id] = batches_.end();
    --size_;
    std::erase_if(batch->rows, [id](const Query& row) { return row.id == id; });
    if (batch->rows.empty()) {
      batches_.erase(batch);
      return;
    }
    batch->deadline = kNever;
    for (const Query& row : batch->rows) batch->deadline = std::min(batch->deadline, row.deadline);
  }

  // In order of creation. Algorithm 2 wants them by deadline: it sorts a copy, because add() needs this order.
  [[nodiscard]] const std::list<Waiting>& batches() const { return batches_; }
  [[nodiscard]] std::size_t size() const { return size_; }  // queries

 private:
  template <typename T>
  static T apart(T a, T b) {
    return a < b ? b - a : a - b;
  }
  void note(std::uint64_t id, std::list<Waiting>::iterator batch) {
    if (id >= where_.size()) where_.resize(id + 1, batches_.end());
    where_[id] = batch;
  }

  Alike alike_;
  std::list<Waiting> batches_;
  std::vector<std::list<Waiting>::iterator> where_;  // by id; the end: it does not wait
  std::size_t size_ = 0;
};

}  // namespace arlo::solve::tokens
