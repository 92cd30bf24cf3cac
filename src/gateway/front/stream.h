// One ModelStreamInfer stream: requests run side by side, answers go back as they come, matched by the client by id.
#pragma once

#include <grpcpp/support/async_stream.h>

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "gateway/desk/call.h"
#include "gateway/front/data_service.h"
#include "gateway/front/rpc.h"
#include "gateway/front/unsent.h"

namespace arlo::gateway {

// Waits for a stream on its queue, then makes the next to wait there. Deletes itself when gRPC has reported the end of
// every operation and every request on it is answered. Reading pauses while kWindow requests are open or their answers
// unread, or those answers take kMostOwed bytes, which pushes back on the client through HTTP/2 flow control.
class StreamCall {
 public:
  static constexpr std::size_t kWindow = 1024;
  static constexpr std::size_t kMostOwed = 16 << 20;

  StreamCall(DataService& service, grpc::ServerCompletionQueue& queue);

  // The gateway stops: further requests are refused, and when the open ones are answered the stream ends UNAVAILABLE,
  // for one that is on its way to us then goes unanswered.
  void close();

 private:
  class Item;
  struct Outgoing {
    grpc::ByteBuffer message;
    UnsentAnswers::Answer unsent;
  };
  using Lock = std::unique_lock<std::mutex>;

  void accepted(bool ok);
  void read(bool ok);
  void written(bool ok);
  void over(bool ok);      // answered, cancelled by the client, or past its deadline
  void finished(bool ok);  // the status is sent or given up

  void answer(const grpc::ByteBuffer& message, Item* item);
  void drop_outbox();
  // Starts what can be started next: a read, a write, the end. Then deletes this if nothing is left; nothing may
  // follow.
  void advance(Lock& lock);

  DataService& service_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> io_{&context_};
  grpc::ByteBuffer incoming_;
  MemberEvent<StreamCall> accepted_{*this, &StreamCall::accepted};
  MemberEvent<StreamCall> read_{*this, &StreamCall::read};
  MemberEvent<StreamCall> written_{*this, &StreamCall::written};
  MemberEvent<StreamCall> over_{*this, &StreamCall::over};
  MemberEvent<StreamCall> finished_{*this, &StreamCall::finished};

  std::mutex mutex_;
  std::unordered_map<Item*, std::shared_ptr<Item>> open_;
  std::deque<Outgoing> outbox_;  // front is being written while writing_
  std::size_t owed_ = 0;         // bytes in outbox_ and, by estimate, of the answers of open_
  std::size_t largest_ = 0;      // answer so far
  grpc::Status status_ = grpc::Status::OK;
  bool reading_ = false;  // a read is under way, or incoming_ is in use
  bool writing_ = false;
  bool ended_ = false;      // the client sends no more, or we take no more
  bool closing_ = false;    // the gateway stops
  bool broken_ = false;     // the client has gone
  bool finishing_ = false;  // Finish was called
  bool finish_done_ = false;
  bool over_done_ = false;
  bool deleting_ = false;
};

}  // namespace arlo::gateway
