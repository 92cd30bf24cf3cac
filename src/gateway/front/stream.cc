#include "gateway/front/stream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gateway/fleet/lane.h"
#include "gateway/front/encode.h"

namespace arlo::gateway {

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
      const auto none = encode_partial(*this, *answer, stream_->service_.max_message_bytes(), &message);
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
    encode_answer(*this, true, stream_->service_.max_message_bytes(),
                  [this](const MaybeFault& none, std::string message) {
                    if (none) message = encode_stream_fault(*none, request.id());
                    stream_->answer(*this, std::move(message));
                  });
  }

  const std::shared_ptr<StreamCall> stream_;
};

std::unique_ptr<transport::CallHandler> StreamCall::begin(DataService& service, Lane& lane, Open& open,
                                                          transport::ServerCall& call) {
  auto stream = std::make_shared<StreamCall>(service, lane, open, call);
  if (const auto fault = service.authorize(call)) {
    answer_fault(call, *fault);
    stream->ended_ = true;
    stream->call_ = nullptr;
  }
  return std::make_unique<Handler>(std::move(stream));
}

StreamCall::StreamCall(DataService& service, Lane& lane, Open& open, transport::ServerCall& call)
    : service_(service), lane_(lane), streams_(open), call_(&call) {
  service_.call_received();
  streams_.insert(this);
  if (call.deadline() != kNever) lane_.loop().set(*this, call.deadline());
}

StreamCall::~StreamCall() {
  streams_.erase(this);
  lane_.loop().clear(*this);
  service_.call_over();
}

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
    service_.let_help(job, item.client, item.text_deadline(), lane_, [this, &item] { bind(item); });
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

void StreamCall::partial(std::string message) {
  if (call_ != nullptr) call_->send(std::move(message));
}

void StreamCall::half_closed() {
  ended_ = true;
  advance();
}

void StreamCall::due() {
  if (call_ == nullptr) return;
  ended_ = true;
  call_->finish(static_cast<std::uint32_t>(Code::kDeadlineExceeded), "the stream's deadline has passed", {});
  call_ = nullptr;
  cancel_all();
}

void StreamCall::closed() {
  call_ = nullptr;
  ended_ = true;
  cancel_all();
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

void StreamCall::close() {
  closing_ = true;
  advance();
}

void StreamCall::advance() {
  if (call_ == nullptr) return;
  if ((ended_ || closing_) && open_.empty()) {
    if (ended_) {
      call_->finish(0, {}, {});
    } else {
      call_->finish(static_cast<std::uint32_t>(Code::kUnavailable),
                    "the gateway is stopping: what is unanswered was not served", {});
    }
    call_ = nullptr;
    return;
  }
  const bool full =
      open_.size() + call_->waiting() >= kWindow || owed_ + call_->unsent() >= kMostOwed || binding_ >= kMostBinding;
  if (full != std::exchange(paused_, full)) call_->pause(full);
}

}  // namespace arlo::gateway
