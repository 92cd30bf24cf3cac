// The rows that wait in the gateway, newest first: a list linked through the rows, so that it costs no allocation.
#pragma once

#include "gateway/desk/call.h"

namespace arlo::gateway {

class WaitingRows {
 public:
  void add(Row& row) {
    row.newer = nullptr;
    row.older = newest_;
    if (newest_ != nullptr) newest_->newer = &row;
    newest_ = &row;
  }
  void remove(Row& row) {
    (row.newer != nullptr ? row.newer->older : newest_) = row.older;
    if (row.older != nullptr) row.older->newer = row.newer;
    row.newer = row.older = nullptr;
  }
  [[nodiscard]] Row* newest() const { return newest_; }

 private:
  Row* newest_ = nullptr;
};

}  // namespace arlo::gateway
