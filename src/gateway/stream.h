// One ModelStreamInfer stream: requests run side by side, answers go back as they come, matched by the client by id.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "gateway/call.h"
#include "gateway/data_service.h"

namespace arlo::gateway {

// Deletes itself when gRPC is done with it. Reading pauses while kWindow requests are open, which pushes back on the
// client through HTTP/2 flow control.
class StreamReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static constexpr std::size_t kWindow = 1024;

  StreamReactor(DataService& service, const grpc::CallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // No further requests; the stream ends when the open ones are answered.
  void close();

 private:
  class Item;

  void answer(grpc::ByteBuffer message, Item* item);
  // Starts the next read and write, or ends the stream when nothing is left to do; then the lock is released and this
  // may be gone: nothing may follow.
  void advance(std::unique_lock<std::mutex>& lock);

  DataService& service_;
  const grpc::CallbackServerContext& context_;
  grpc::ByteBuffer incoming_;

  std::mutex mutex_;
  std::unordered_map<Item*, std::shared_ptr<Item>> open_;
  std::deque<grpc::ByteBuffer> outbox_;  // front is being written while writing_
  bool writing_ = false;
  bool reading_ = true;   // a read is under way, or incoming_ is in use
  bool ended_ = false;    // the client sends no more, or we take no more
  bool finished_ = false;
};

}  // namespace arlo::gateway
