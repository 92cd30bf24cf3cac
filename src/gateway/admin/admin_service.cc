#include "gateway/admin/admin_service.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "gateway/admin/listen.h"

namespace arlo::gateway {
namespace {

grpc::Status to_status(const Fault& fault) { return {static_cast<grpc::StatusCode>(fault.code), fault.message}; }

constexpr TimeNs kPause = 100'000'000;  // between looks at what is not an event
constexpr std::uint64_t kMessageBytes = 64U << 20;
}  // namespace

// One WatchStats stream, of the admin thread alone: its operations end there and tick() is called there.
class StatsStream final : public Event {
 public:
  explicit StatsStream(AdminServer& server) : server_(server), writer_(&context_) {
    server_.service_.RequestWatchStats(&context_, &request_, &writer_, server_.queue_.get(), server_.queue_.get(),
                                       tag());
  }

  void proceed(bool ok) override {
    switch (state_) {
      case State::kAccepting:
        if (!ok) {
          delete this;
          return;
        }
        new StatsStream(server_);
        server_.streams_.insert(this);
        if (!request_.once() && (request_.interval_ms() < 100 || request_.interval_ms() > 60000)) {
          finish({grpc::StatusCode::INVALID_ARGUMENT, "interval_ms must be 100 to 60000"});
        } else if (const auto fault = server_.models_.pick(request_.model(), &router_)) {
          finish(to_status(*fault));
        } else {
          write();
        }
        return;
      case State::kWriting:
        if (!ok || request_.once() || server_.stopping_) {
          finish(grpc::Status::OK);
          return;
        }
        state_ = State::kWaiting;
        due_ns_ = now_ns() + TimeNs{request_.interval_ms()} * kMs;
        return;
      case State::kWaiting:
        return;
      case State::kFinishing:
        server_.streams_.erase(this);
        delete this;
        return;
    }
  }
  void tick(TimeNs now) {
    if (state_ != State::kWaiting) return;
    if (server_.stopping_) {
      finish(grpc::Status::OK);
    } else if (now >= due_ns_) {
      write();  // to a client that has gone it fails, which ends the stream
    }
  }
  [[nodiscard]] TimeNs due() const { return state_ == State::kWaiting ? due_ns_ : kNever; }

 private:
  enum class State : std::uint8_t { kAccepting, kWriting, kWaiting, kFinishing };

  void write() {
    state_ = State::kWriting;
    v1::Stats stats;
    router_->stats(request_.model(), &stats);
    writer_.Write(stats, tag());
  }
  void finish(const grpc::Status& status) {
    state_ = State::kFinishing;
    writer_.Finish(status, tag());
  }

  AdminServer& server_;
  Router* router_ = nullptr;
  grpc::ServerContext context_;
  v1::WatchStatsRequest request_;
  grpc::ServerAsyncWriter<v1::Stats> writer_;
  State state_ = State::kAccepting;
  TimeNs due_ns_ = 0;
};

AdminServer::AdminServer(Models& models, const std::string& address) : models_(models) {
  ListenOptions options;
  options.address = address;
  options.what = "admin_address";
  options.max_message_bytes = kMessageBytes;
  auto listening = listen(options, {&service_}, 1);
  queue_ = std::move(listening.queues.front());
  server_ = std::move(listening.server);
  address_ = std::move(listening.address);
  serve_methods();
  thread_ = std::thread([this] { loop(); });
}

AdminServer::~AdminServer() {
  stopping_ = true;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  server_down_ = true;
  thread_.join();
}

void AdminServer::serve_methods() {
  auto* queue = queue_.get();
  using Apply = UnaryMethod<v1::ApplyRequest, v1::ApplyReply>;
  Apply::serve(std::make_shared<const Apply::Spec>(
      Apply::Spec{queue,
                  [this, queue](auto* context, auto* request, auto* writer, void* tag) {
                    service_.RequestApply(context, request, writer, queue, queue, tag);
                  },
                  [this](const auto&, const v1::ApplyRequest& request, v1::ApplyReply* reply, const Apply::Done& done) {
                    const auto fault = models_.apply(request, reply);
                    done(fault ? to_status(*fault) : grpc::Status::OK);
                  }}));
  using Drain = UnaryMethod<v1::DrainRequest, v1::DrainReply>;
  Drain::serve(std::make_shared<const Drain::Spec>(Drain::Spec{
      queue,
      [this, queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestDrain(context, request, writer, queue, queue, tag);
      },
      [this](const auto&, const v1::DrainRequest& request, v1::DrainReply*, const Drain::Done& done) {
        const auto timeout_ms = request.timeout_ms();
        Router* router = nullptr;
        if (const auto fault = models_.pick(request.model(), &router)) {
          done(to_status(*fault));
          return;
        }
        const auto fault = router->drain(request.instance(), TimeNs{timeout_ms} * 1'000'000,
                                         [done, id = request.instance(), timeout_ms](bool drained) {
                                           done(drained ? grpc::Status::OK
                                                        : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                                                                       "instance '" + id + "' still drains after " +
                                                                           std::to_string(timeout_ms) + " ms"));
                                         });
        if (fault) done(to_status(*fault));
      }}));
  using Get = UnaryMethod<v1::GetDeploymentRequest, v1::GetDeploymentReply>;
  Get::serve(std::make_shared<const Get::Spec>(
      Get::Spec{queue,
                [this, queue](auto* context, auto* request, auto* writer, void* tag) {
                  service_.RequestGetDeployment(context, request, writer, queue, queue, tag);
                },
                [this](const auto&, const auto& request, v1::GetDeploymentReply* reply, const Get::Done& done) {
                  Router* router = nullptr;
                  const auto fault = models_.pick(request.model(), &router);
                  if (!fault) *reply->mutable_deployment() = router->deployment();
                  done(fault ? to_status(*fault) : grpc::Status::OK);
                }}));
  using SampleMethod = UnaryMethod<v1::GetSampleRequest, v1::GetSampleReply>;
  SampleMethod::serve(std::make_shared<const SampleMethod::Spec>(SampleMethod::Spec{
      queue,
      [this, queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestGetSample(context, request, writer, queue, queue, tag);
      },
      [this](const auto&, const auto& request, v1::GetSampleReply* reply, const SampleMethod::Done& done) {
        Router* router = nullptr;
        const auto fault = models_.pick(request.model(), &router);
        if (!fault) router->sample(request.model(), reply);
        done(fault ? to_status(*fault) : grpc::Status::OK);
      }}));
  new StatsStream(*this);
}

void AdminServer::loop() {
  for (;;) {
    const bool last_calls = server_down_;  // read first: what came before it is in the queue now
    TimeNs next = now_ns() + kPause;
    for (const auto* stream : streams_) next = std::min(next, stream->due());
    const gpr_timespec until{next / 1'000'000'000, static_cast<std::int32_t>(next % 1'000'000'000),
                             GPR_CLOCK_MONOTONIC};
    void* tag = nullptr;
    bool ok = false;
    while (queue_->AsyncNext(&tag, &ok, until) == grpc::CompletionQueue::GOT_EVENT) {
      Event::handle(tag, ok);
      if (now_ns() >= next) break;
    }
    const TimeNs now = now_ns();
    const std::vector<StatsStream*> streams(streams_.begin(), streams_.end());
    for (auto* stream : streams) stream->tick(now);
    // A queue that is shut down takes no operations, so the streams end first: also those that wait, of clients gone.
    if (last_calls && streams_.empty()) break;
  }
  queue_->Shutdown();
  poll_until_shutdown(*queue_);
}

}  // namespace arlo::gateway
