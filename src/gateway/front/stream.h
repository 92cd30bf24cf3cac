// One ModelStreamInfer stream: requests run concurrently, answers return in completion order, and clients match ids.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "gateway/desk/call.h"
#include "gateway/front/data_service.h"
#include "transport/loop.h"
#include "transport/server_session.h"

namespace arlo::gateway {

// Runs on its lane's thread. Lives until the stream is over and every request on it is answered. Reading pauses while
// kWindow requests are open or their answers unread, while those answers take kMostOwed bytes, or while kMostBinding
// bytes of requests wait for another thread to read them. HTTP/2 flow control passes this on to the client.
class StreamCall final : private transport::Loop::Timer, public std::enable_shared_from_this<StreamCall> {
 public:
  static constexpr std::size_t kWindow = 1024;
  static constexpr std::size_t kMostOwed = 16 << 20;
  static constexpr std::size_t kMostBinding = 16 << 20;
  using Open = std::unordered_set<StreamCall*>;  // of a lane

  static std::unique_ptr<transport::CallHandler> begin(DataService& service, Lane& lane, Open& open,
                                                       transport::ServerCall& call);
  StreamCall(DataService& service, Lane& lane, Open& open, transport::ServerCall& call);
  ~StreamCall();
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  // The gateway stops: further requests are refused. When the open ones are answered, the stream ends UNAVAILABLE,
  // because a request still on its way to us gets no answer.
  void close();

 private:
  class Handler;
  class Item;

  void message(std::string bytes);
  void bind(Item& item);
  void begin(Item& item, MaybeFault fault);  // `fault`: from reading it; empty: the request is valid
  void half_closed();
  void closed();
  void due() override;  // the stream's own deadline
  void answer(Item& item, std::string message);
  void partial(std::string message);
  void cancel_all();
  // Resumes reading or ends the stream, if possible now.
  void advance();

  DataService& service_;
  Lane& lane_;
  Open& streams_;
  transport::ServerCall* call_;  // null once it is over
  std::unordered_map<Item*, std::shared_ptr<Item>> open_;
  std::size_t owed_ = 0;     // estimated bytes of the answers to open_
  std::size_t binding_ = 0;  // bytes of the requests being bound
  std::size_t largest_ = 0;  // answer so far
  bool ended_ = false;       // the client sends no more, or we accept no more
  bool closing_ = false;     // the gateway stops
  bool paused_ = false;
};

}  // namespace arlo::gateway
