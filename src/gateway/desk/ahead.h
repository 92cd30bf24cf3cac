// Speculation (flow/cascade/speculate.h): a row's visit to the last stage that is made beside its first ones.
//
// It is a request of the gateway's own to the same cascade: of the class bulk, one row, whole, for the last stage
// alone, in no books but those of the work that is done. The row that it is of and the visit know of each other, under
// the router's lock, until one of them ends. A row that has no use for its visit lets go of it: one that waits is taken
// back, of one that runs the answer is dropped, and its room is free when the worker is through.
#pragma once

#include "gateway/desk/call.h"

namespace arlo::gateway {

class Ahead;

class AheadListener {
 public:
  // It is over: desk_.ahead_ended() says what that means for its row.
  virtual void ahead_done(Ahead& ahead) = 0;

 protected:
  ~AheadListener() = default;
};

class Ahead final : public Call {
 public:
  Ahead(AheadListener& listener, Row& row, TimeNs now);

  // Its request, while the row's call is held; which is let go then. A fault: the cascade does not take it.
  MaybeFault write();
  void complete() override { listener_.ahead_done(*this); }

  [[nodiscard]] bool good() const { return over && fault.code == Code::kOk; }
  // It is with a worker of the last stage.
  [[nodiscard]] bool runs() const { return rows.size() == 1 && rows.front().state == Row::State::kRunning; }

  // Under the router's lock.
  Row* row;           // null: it has no use for this any more
  bool sent = false;  // it was submitted
  bool over = false;  // complete() was called; it stays for its row's sake

 private:
  AheadListener& listener_;
  Call& of_;  // until write()
  const std::uint32_t index_;
  const std::int32_t length_;
};

}  // namespace arlo::gateway
