#include "gateway/front/infer_call.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gateway/fleet/lane.h"
#include "gateway/front/encode.h"
#include "gateway/front/unary.h"
#include "transport/loop.h"

namespace arlo::gateway {
namespace {

// Runs on its lane's thread, except complete(). Deletes itself once it is complete and its client has the answer or has
// gone.
class InferCall final : public Call {
 public:
  InferCall(DataService& service, Lane& call_lane, transport::ServerCall& call)
      : service_(service), server_call_(&call) {
    lane = &call_lane;
    service_.call_received();
  }

  void received(std::string bytes) {
    if (const auto refusal = service_.open(std::move(bytes), *server_call_, false, this)) return bound(refusal);
    bind();
  }

  void complete() override {
    lane->loop().run_here([this] { answer(); });
  }

  void closed() {
    server_call_ = nullptr;
    if (busy_) {
      DataService::leave(*this);
    } else {
      text::drop(text_job);
    }
    // The client has gone, or was rejected, before it had its answer.
    if (submitted_ && !completed_) router->cancel(*this);
    closed_ = true;
    release();
  }

 private:
  ~InferCall() override = default;

  void bind() {
    busy_ = true;
    service_.bind(false, this, [this](const MaybeFault& refusal) {
      busy_ = false;
      bound(refusal);
    });
  }

  // `refusal`: empty, if the request is valid.
  void bound(const MaybeFault& refusal) {
    if (closed_) {  // the client has gone meanwhile
      service_.count_refused(*this, {Code::kCancelled, "cancelled by the client"});
      return release();
    }
    if (const auto job = refusal ? text::wanted_of(text_job) : nullptr) {
      return service_.helpers().run(job, client, text_deadline(), lane->loop(), [this] { bind(); });
    }
    if (refusal) {
      service_.count_refused(*this, *refusal);
      service_.trace(*this, *refusal);
      answer_fault(*server_call_, *refusal);
      return;
    }
    submitted_ = true;
    router->submit(*this);
  }

  void answer() {
    completed_ = true;
    service_.trace(*this, fault);
    if (server_call_ == nullptr) return release();
    busy_ = true;
    encode_answer(*this, false, service_.config().max_message_bytes(),
                  [this](const MaybeFault& none, std::string bytes) {
                    busy_ = false;
                    if (server_call_ != nullptr && none) {
                      answer_fault(*server_call_, *none);
                    } else if (server_call_ != nullptr) {
                      server_call_->send(std::move(bytes));
                      server_call_->finish(0, {}, {});
                    }
                    release();
                  });
  }

  void release() {
    if (!closed_ || busy_ || (submitted_ && !completed_)) return;
    auto& service = service_;
    delete this;
    service.call_over();
  }

  DataService& service_;
  transport::ServerCall* server_call_;  // null once it is over
  bool busy_ = false;                   // another thread reads the request or writes its answer
  bool submitted_ = false;
  bool completed_ = false;
  bool closed_ = false;
};

class InferHandler final : public UnaryHandler {
 public:
  InferHandler(InferCall& infer, transport::ServerCall& call) : UnaryHandler(call), infer_(infer) {}
  void closed(bool) override { infer_.closed(); }

 private:
  void received(std::string bytes) override { infer_.received(std::move(bytes)); }

  InferCall& infer_;
};

// Lives until the stream is over and every request on it is answered. Reading pauses while kWindow requests are open or
// their answers unread, while those answers take kMostOwed bytes, or while kMostBinding bytes of requests wait for
// another thread to read them. HTTP/2 flow control passes this on to the client.
class StreamCall final : public OpenStream,
                         private transport::Loop::Timer,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  static constexpr std::size_t kWindow = 1024;
  static constexpr std::size_t kMostOwed = 16 << 20;
  static constexpr std::size_t kMostBinding = 16 << 20;

  StreamCall(DataService& service, Lane& lane, OpenStreams& open, transport::ServerCall& call)
      : service_(service), lane_(lane), streams_(open), call_(&call) {
    service_.call_received();
    streams_.insert(this);
    if (call.deadline() != kNever) lane_.loop().set(*this, call.deadline());
  }
  ~StreamCall() {
    streams_.erase(this);
    lane_.loop().clear(*this);
    service_.call_over();
  }
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  void close() override {
    closing_ = true;
    advance();
  }

  // Refuses the whole stream.
  void refuse(const Fault& fault) {
    answer_fault(*call_, fault);
    ended_ = true;
    call_ = nullptr;
  }

  class Handler;

 private:
  class Item;

  void message(std::string bytes);
  void bind(Item& item);
  void begin(Item& item, MaybeFault fault);  // `fault`: from reading it; empty: the request is valid
  void answer(Item& item, std::string message);
  void cancel_all();

  void partial(std::string message) {
    if (call_ != nullptr) call_->send(std::move(message));
  }

  void half_closed() {
    ended_ = true;
    advance();
  }

  void closed() {
    call_ = nullptr;
    ended_ = true;
    cancel_all();
  }

  // The stream's own deadline.
  void due() override {
    if (call_ == nullptr) return;
    ended_ = true;
    call_->finish(static_cast<std::uint32_t>(Code::kDeadlineExceeded), "the stream's deadline has passed", {});
    call_ = nullptr;
    cancel_all();
  }

  // Resumes reading or ends the stream, if possible now.
  void advance() {
    if (call_ == nullptr) return;
    if ((ended_ || closing_) && open_.empty()) {
      if (ended_) {
        call_->finish(0, {}, {});
      } else {
        call_->finish(static_cast<std::uint32_t>(Code::kUnavailable),
                      "the gateway is stopping: calls without an answer were not served", {});
      }
      call_ = nullptr;
      return;
    }
    const bool full =
        open_.size() + call_->waiting() >= kWindow || owed_ + call_->unsent() >= kMostOwed || binding_ >= kMostBinding;
    if (full != std::exchange(paused_, full)) call_->pause(full);
  }

  DataService& service_;
  Lane& lane_;
  OpenStreams& streams_;
  transport::ServerCall* call_;  // null once it is over
  std::unordered_map<Item*, std::shared_ptr<Item>> open_;
  std::size_t owed_ = 0;     // estimated bytes of the answers to open_
  std::size_t binding_ = 0;  // bytes of the requests being bound
  std::size_t largest_ = 0;  // answer so far
  bool ended_ = false;       // the client sends no more, or we accept no more
  bool closing_ = false;     // the gateway stops
  bool paused_ = false;
};

class StreamCall::Handler final : public transport::CallHandler {
 public:
  explicit Handler(std::shared_ptr<StreamCall> stream) : stream_(std::move(stream)) {}
  void message(std::string bytes) override { stream_->message(std::move(bytes)); }
  void half_closed() override { stream_->half_closed(); }
  void sent() override { stream_->advance(); }
  void closed(bool) override { stream_->closed(); }
  [[nodiscard]] bool unary() const override { return false; }
  [[nodiscard]] bool idle() const override { return stream_->open_.empty(); }

 private:
  const std::shared_ptr<StreamCall> stream_;
};

// Kept alive by open_ until it is answered, and by cancel_all().
class StreamCall::Item final : public Call {
 public:
  Item(std::shared_ptr<StreamCall> stream, std::size_t size) : bytes(size), stream_(std::move(stream)) {
    lane = &stream_->lane_;
  }

  void complete() override {
    lane->loop().run_here([this] { answer(); });
  }
  void partial(std::unique_ptr<PartialAnswer> answer) override {
    lane->loop().run_here([this, answer = std::shared_ptr<PartialAnswer>(std::move(answer))] {
      std::string message;
      const auto none = encode_partial(*this, *answer, stream_->service_.config().max_message_bytes(), &message);
      if (!none) stream_->partial(std::move(message));
      let_go();
    });
  }
  void refuse(const Fault& why) { stream_->answer(*this, encode_stream_fault(why, request.id())); }

  const std::size_t bytes;  // of the message
  std::size_t owed = 0;     // expected bytes of its answer
  bool submitted = false;
  bool binding = false;  // another thread may read the request

 private:
  void answer() {
    stream_->service_.trace(*this, fault);
    encode_answer(*this, true, stream_->service_.config().max_message_bytes(),
                  [this](const MaybeFault& none, std::string message) {
                    if (none) message = encode_stream_fault(*none, request.id());
                    stream_->answer(*this, std::move(message));
                  });
  }

  const std::shared_ptr<StreamCall> stream_;
};

void StreamCall::message(std::string bytes) {
  if (ended_) return;
  const std::size_t size = bytes.size();
  const auto item = std::make_shared<Item>(shared_from_this(), size);
  open_.emplace(item.get(), item);
  if (auto fault = service_.open(std::move(bytes), *call_, true, item.get())) return begin(*item, std::move(fault));
  bind(*item);
  advance();
}

void StreamCall::bind(Item& item) {
  item.binding = true;
  binding_ += item.bytes;
  service_.bind(true, &item, [this, &item](const MaybeFault& fault) {
    item.binding = false;
    binding_ -= item.bytes;
    begin(item, fault);
  });
}

void StreamCall::begin(Item& item, MaybeFault fault) {
  if (call_ == nullptr) fault = Fault{Code::kCancelled, "cancelled by the client"};
  if (const auto job = fault && call_ != nullptr ? text::wanted_of(item.text_job) : nullptr) {
    service_.helpers().run(job, item.client, item.text_deadline(), lane_.loop(), [this, &item] { bind(item); });
    advance();
    return;
  }
  if (!fault && closing_) fault = Fault{Code::kUnavailable, "the gateway is stopping: send the request elsewhere"};
  if (fault) {
    service_.count_refused(item, *fault);
    item.refuse(*fault);
    return;
  }
  item.owed = std::max<std::size_t>(known_answer_bytes(*item.model, item.request), largest_);
  owed_ += item.owed;
  item.submitted = true;
  item.router->submit(item);
  advance();
}

void StreamCall::answer(Item& item, std::string message) {
  const auto found = open_.find(&item);
  const auto kept = std::move(found->second);
  open_.erase(found);
  owed_ -= kept->owed;
  if (call_ == nullptr) return;
  largest_ = std::max(largest_, message.size());
  call_->freed(kept->bytes);
  call_->send(std::move(message));
  advance();
}

void StreamCall::cancel_all() {
  std::vector<std::shared_ptr<Item>> open;
  open.reserve(open_.size());
  for (const auto& [key, item] : open_) open.push_back(item);
  for (const auto& item : open) {
    if (item->submitted) {
      item->router->cancel(*item);
    } else if (item->binding) {
      DataService::leave(*item);
    } else {  // it waits for a helper
      text::drop(item->text_job);
      open_.erase(item.get());
    }
  }
}

}  // namespace

std::unique_ptr<transport::CallHandler> infer_call(DataService& service, Lane& lane, transport::ServerCall& call) {
  return std::make_unique<InferHandler>(*new InferCall(service, lane, call), call);
}

std::unique_ptr<transport::CallHandler> stream_call(DataService& service, Lane& lane, OpenStreams& streams,
                                                    transport::ServerCall& call) {
  auto stream = std::make_shared<StreamCall>(service, lane, streams, call);
  if (const auto fault = service.authorize(call)) stream->refuse(*fault);
  return std::make_unique<StreamCall::Handler>(std::move(stream));
}

}  // namespace arlo::gateway
