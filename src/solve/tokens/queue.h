// Batches of queries that are alike: OTAS, Algorithm 1. Pure; integers, for |1.1 - 0.6| > 0.5 holds in floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <ranges>
#include <vector>

#include "base/time.h"

namespace arlo::solve::tokens {

struct Query {
  std::uint64_t id = 0;
  TimeNs arrived = 0;
  TimeNs deadline = 0;
  double utility = 0;
  std::uint32_t kind = 0;  // the caller's
};

struct Alike {
  TimeNs delta = 500'000'000;  // a batch takes queries this long after its first one
  std::size_t most = 64;       // epsilon: queries of a batch
  TimeNs eta = 500'000'000;    // its deadline and the query's may be this far apart
  double mu = 0.8;             // the utility of its first query and the query's, too
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

  // Queries in order of arrival.
  void add(const Query& query) {
    for (Waiting& batch : std::views::reverse(batches_)) {
      if (batch.arrived + alike_.delta < query.arrived) break;  // those before are older still
      if (batch.rows.size() >= alike_.most || apart(batch.deadline, query.deadline) > alike_.eta ||
          apart(batch.utility, query.utility) > alike_.mu) {
        continue;
      }
      batch.rows.push_back(query);
      if (query.deadline < batch.deadline) batch.deadline = query.deadline;
      return;
    }
    batches_.push_back({{query}, query.arrived, query.deadline, query.utility});
  }

  // In order of creation. Algorithm 2 wants them by deadline: it sorts a list of its own, for add() needs this order.
  [[nodiscard]] std::list<Waiting>& batches() { return batches_; }
  [[nodiscard]] const std::list<Waiting>& batches() const { return batches_; }

 private:
  template <typename T>
  static T apart(T a, T b) {
    return a < b ? b - a : a - b;
  }

  Alike alike_;
  std::list<Waiting> batches_;
};

}  // namespace arlo::solve::tokens
