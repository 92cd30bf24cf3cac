// Why a request gets no result. The codes are gRPC's, in our own enum so that the pure parts (parsing, validation,
// rewriting) need no gRPC.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace arlo {

enum class Code : std::uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kUnauthenticated = 16,
};

struct Fault {
  Code code = Code::kOk;
  std::string message;
  bool overload = false;          // too many requests at a time: a retry later, or elsewhere, may succeed
  std::int64_t predicted_ms = 0;  // of an overload: how long an answer would have taken; 0: not known
  // Cases that some APIs report separately: the request cannot be read, is empty, or its address does not exist; and
  // one that is counted: a model's answer has numbers that are NaN or infinite.
  enum class Kind : std::uint8_t { kUsual, kSyntax, kEmpty, kNoPath, kNotFinite } kind = Kind::kUsual;
};

using MaybeFault = std::optional<Fault>;  // empty: all is well

inline MaybeFault invalid(std::string message) { return Fault{Code::kInvalidArgument, std::move(message), false, 0}; }
inline MaybeFault unreadable(std::string message) {
  return Fault{Code::kInvalidArgument, std::move(message), false, 0, Fault::Kind::kSyntax};
}
inline MaybeFault nothing_in(std::string message) {
  return Fault{Code::kInvalidArgument, std::move(message), false, 0, Fault::Kind::kEmpty};
}

}  // namespace arlo
