// Which waiting rows an instance that has room executes next as one batch, and on which of its runtimes.
//
// The scheduler decides whose turn it is and how long a batch would take; the chooser decides which rows start. There
// are two kinds: lengths by deadline (batching/by_deadline.h) for every line, and a body's chooser
// (Scheduler::set_body), which is also notified of every row that comes and goes. A chooser decides and moves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dispatch/cost_model.h"
#include "dispatch/types.h"

namespace arlo::dispatch {

// A row of a body, as its chooser sees it.
struct WaitingRow {
  RequestHandle id = kNone;
  TimeNs arrived = 0;
  TimeNs deadline = kNever;  // an end before it is in time
  double utility = 0;        // of an answer that is right and in time
  std::uint32_t kind = 0;    // rows of one kind are answered equally well
  std::int32_t length = 1;   // tokens
  std::int32_t level = 0;    // of lengths
};

// What batches take on the instance whose turn it is.
class BatchTimes {
 public:
  virtual ~BatchTimes() = default;
  // From now to the end of such a batch, if it is the next one; `variant` by its place in the body. kNever: the
  // instance cannot execute it so.
  [[nodiscard]] virtual TimeNs of(std::size_t variant, std::int32_t length, std::int64_t rows) const = 0;
};

struct Turn {
  InstanceId instance = kNone;
  RequestHandle first = kNone;  // the row whose turn it is
  TimeNs start = 0;             // when the instance can begin
  // Of a body:
  int instances = 1;  // that serve its line
  const BatchTimes* times = nullptr;
};

struct BatchChoice {
  std::vector<RequestHandle> rows;          // empty: no waiting row is worth it
  const Bundle::Member* runtime = nullptr;  // that executes them
  // Of a body, in place of the runtime:
  std::size_t variant = 0;             // by its place in the body
  std::int32_t longest = 0;            // tokens of the rows
  std::vector<RequestHandle> evicted;  // rows worth more go before them; whether or not a batch starts
};

class BatchChooser {
 public:
  virtual ~BatchChooser() = default;

  // Chooses the rows that start now. `choice` is empty on entry.
  virtual void choose(const Turn& turn, BatchChoice& choice) = 0;

  // A row arrives for the first time.
  virtual void arrived(TimeNs /*now*/, const WaitingRow& /*row*/) {}
  // A row begins to wait, or stops waiting.
  virtual void add(const WaitingRow& /*row*/) {}
  virtual void remove(RequestHandle /*row*/) {}

  // Adopts the rules of another chooser of its kind and keeps its knowledge of rows. False: the other is of another
  // kind.
  virtual bool follow(const BatchChooser& /*other*/) { return false; }
  // Utility of a worker-second at the last choice; 0 where none is asked.
  [[nodiscard]] virtual double price() const { return 0; }
};

}  // namespace arlo::dispatch
