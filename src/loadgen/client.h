// Connections to the target and calls in flight on them.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "loadgen/options.h"
#include "loadgen/plan.h"
#include "loadgen/records.h"
#include "loadgen/report.h"

namespace arlo::loadgen {

// One request in flight; its memory is used again for later ones.
struct Call {
  Record record;
  uint32_t slot = 0;  // closed loop: which of the concurrent senders
  std::optional<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  grpc::ByteBuffer response;
  grpc::Status status;
  bool live = false;
};

// Sends requests as raw bytes over several connections; completions come out of its queues, channel c on
// queue c % threads. Start, Finish and CancelAll may be called from any thread.
class Client {
 public:
  // Throws std::runtime_error when a certificate or token file cannot be read or the responses file not be written.
  Client(const Options& options, const Plan& plan, Report* report);
  ~Client();

  // False: the target did not accept all connections in time.
  bool Connect();
  // Sends `n` requests one after another, unrecorded. False with the reason when one is not answered OK.
  bool WarmUp(uint32_t n, std::string* error);

  Call* Acquire();
  // Sends record.payload on a channel; `deadline` empty: none. Its tag comes out of the channel's queue.
  void Start(Call* call, size_t channel, std::optional<Clock::time_point> deadline);
  // Completes the record from the response (done_us is the caller's), keeps the response if asked, counts it.
  void Finish(Call* call);
  void Release(Call* call);
  void CancelAll();

  grpc::CompletionQueue* queue(size_t thread) { return queues_[thread].get(); }
  size_t channels() const { return stubs_.size(); }
  size_t threads() const { return queues_.size(); }
  // Flushes the responses file; throws std::runtime_error when it is not whole.
  void CloseResponses();

 private:
  void KeepResponse(const Record& record, const grpc::Slice& bytes);

  const Options& options_;
  Report* const report_;
  std::vector<grpc::ByteBuffer> payloads_;  // views of the plan's mapping
  std::string authorization_;
  std::vector<std::shared_ptr<grpc::Channel>> connections_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::unique_ptr<grpc::CompletionQueue>> queues_;

  std::mutex mutex_;  // guards what follows, and `live` and `context` of the calls against CancelAll
  std::deque<Call> calls_;
  std::vector<Call*> free_;

  std::mutex responses_mutex_;
  FILE* responses_ = nullptr;
  bool responses_ok_ = true;
};

}  // namespace arlo::loadgen
