// Calls with one message and one answer.
#pragma once

#include <string>
#include <utility>

#include "base/fault.h"
#include "transport/server_session.h"

namespace arlo::gateway {

class UnaryHandler : public transport::CallHandler {
 public:
  explicit UnaryHandler(transport::ServerCall& call) : call_(call) {}

  void message(std::string bytes) final {
    if (have_) {
      call_.finish(static_cast<std::uint32_t>(Code::kInternal), "a unary call has one message, and more came", {});
    }
    have_ = true;
    bytes_ = std::move(bytes);
  }
  void half_closed() final {
    if (have_) {
      received(std::move(bytes_));
    } else {
      call_.finish(static_cast<std::uint32_t>(Code::kInternal), "a unary call has one message, and none came", {});
    }
  }

 protected:
  virtual void received(std::string bytes) = 0;

  // NOLINTNEXTLINE(cppcoreguidelines-non-private-member-variables-in-classes)
  transport::ServerCall& call_;

 private:
  bool have_ = false;
  std::string bytes_;
};

}  // namespace arlo::gateway
