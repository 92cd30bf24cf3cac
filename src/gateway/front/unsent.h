// Answers that are on their way to clients, bounded in bytes over all of them.
//
// gRPC keeps an answer until the client has taken it, and a client may take none: it need only leave its HTTP/2 window
// shut. Above the limit the call whose answer has waited longest is given up, so clients that read do not pay for those
// that do not.
#pragma once

#include <grpcpp/server_context.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace arlo::gateway {

// Thread-safe.
class UnsentAnswers {
 public:
  // One answer; part of the call or stream that it belongs to, which must outlive its time between add and remove.
  struct Answer {
    grpc::ServerContext* context = nullptr;
    std::size_t bytes = 0;
    Answer* before = nullptr;
    Answer* after = nullptr;
    bool listed = false;
  };

  explicit UnsentAnswers(std::size_t limit) : limit_(limit) {}

  // Before the answer is handed to gRPC; `context` is that of its call.
  void add(Answer& answer, grpc::ServerContext& context, std::size_t bytes);
  // Once gRPC has sent it or given it up; also of one that was never added.
  void remove(Answer& answer);

  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] std::uint64_t given_up() const;  // calls cancelled for others' sake, ever

 private:
  void unlink(Answer& answer);

  const std::size_t limit_;
  mutable std::mutex mutex_;
  Answer* first_ = nullptr;  // waits longest
  Answer* last_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t given_up_ = 0;
};

}  // namespace arlo::gateway
