#include "gateway/admin/admin_service.h"

#include <arlo/v1/admin.pb.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "gateway/front/unary.h"
#include "gateway/log.h"
#include "transport/listener.h"
#include "transport/server.h"

namespace arlo::gateway {
namespace {

constexpr std::uint32_t kLargestOrder = 64U << 20;
constexpr auto kFarewell = std::chrono::milliseconds(100);
constexpr auto kGlance = std::chrono::milliseconds(5);

void finish_call(transport::ServerCall& call, const MaybeFault& fault) {
  call.finish(static_cast<std::uint32_t>(fault ? fault->code : Code::kOk), fault ? fault->message : "", {});
}

// Reads a message, or ends the call with a fault.
template <class Request>
bool read_order(const std::string& bytes, transport::ServerCall& call, Request* out) {
  if (out->ParseFromString(bytes)) return true;
  finish_call(call, Fault{Code::kInternal, "the request is no " + std::string(Request::descriptor()->full_name())});
  return false;
}

// A call with one answer, which may come later and on any thread.
template <class Request, class Reply>
class Method final : public UnaryHandler {
 public:
  using Done = std::function<void(MaybeFault)>;
  using Handle = std::function<void(const Request&, Reply*, const Done&)>;

  Method(transport::ServerCall& call, transport::Loop& loop, Handle handle)
      : UnaryHandler(call), loop_(loop.handle()), handle_(std::move(handle)) {}
  void closed(bool) override { *open_ = nullptr; }

 private:
  void received(std::string bytes) override {
    Request request;
    if (!read_order(bytes, call_, &request)) return;
    auto reply = std::make_shared<Reply>();
    handle_(request, reply.get(), [loop = loop_, open = open_, reply](MaybeFault fault) {
      loop->post([open, reply, fault = std::move(fault)] {
        if (*open == nullptr) return;
        if (!fault) (*open)->send(reply->SerializeAsString());
        finish_call(**open, fault);
      });
    });
  }

  const std::shared_ptr<transport::Loop::Handle> loop_;
  const Handle handle_;
  const std::shared_ptr<transport::ServerCall*> open_ = std::make_shared<transport::ServerCall*>(&call_);
};

}  // namespace

class AdminServer::Port final : private transport::Service {
 public:
  Port(Models& models, const std::string& at) : models_(models), server_(loop_, *this, options()) {
    try {
      const auto listening = transport::listen_on(at);
      address = listening.address;
      listener_.emplace(loop_, listening.fd, [this](int fd) { server_.adopt(fd); }, [this] { server_.run_out(); });
    } catch (const std::runtime_error& error) {
      throw std::invalid_argument("admin_address '" + at + "' cannot be served: " + error.what());
    }
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Port() {
    loop_.post([this] {
      listener_.reset();
      for (auto* stream : std::unordered_set<StatsStream*>(streams_)) stream->end();
      server_.drain();
    });
    const auto until = std::chrono::steady_clock::now() + kFarewell;
    while (connections_ > 0 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kGlance);
    loop_.post([this] {
      server_.close_all();
      loop_.stop();
    });
    thread_.join();
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  std::string address;

 private:
  // One WatchStats call.
  class StatsStream final : public UnaryHandler, private transport::Loop::Timer {
   public:
    StatsStream(Port& port, transport::ServerCall& call) : UnaryHandler(call), port_(port) {}
    ~StatsStream() override { leave(); }
    StatsStream(const StatsStream&) = delete;
    StatsStream& operator=(const StatsStream&) = delete;

    void closed(bool) override { open_ = false; }
    void end(const MaybeFault& fault = {}) {
      leave();
      if (std::exchange(open_, false)) finish_call(call_, fault);
    }

   private:
    void leave() {
      port_.loop_.clear(*this);
      port_.streams_.erase(this);
    }
    void received(std::string bytes) override {
      if (!read_order(bytes, call_, &request_)) return;
      port_.streams_.insert(this);
      if (!request_.once() && (request_.interval_ms() < 100 || request_.interval_ms() > 60000)) {
        return end(invalid("interval_ms must be 100 to 60000"));
      }
      if (const auto fault = port_.models_.pick(request_.model(), &router_)) return end(fault);
      due();
    }
    // A client that has not taken its last snapshot gets no new one.
    void due() override {
      if (call_.unsent() == 0) {
        v1::Stats stats;
        router_->stats(request_.model(), &stats);
        call_.send(stats.SerializeAsString());
      }
      if (request_.once()) return end();
      port_.loop_.set(*this, now_ns() + TimeNs{request_.interval_ms()} * kMs);
    }

    Port& port_;
    Router* router_ = nullptr;
    v1::WatchStatsRequest request_;
    bool open_ = true;
  };

  static transport::ServerOptions options() {
    transport::ServerOptions made;
    made.limits.message_bytes = kLargestOrder;
    return made;
  }

  template <class Request, class Reply, class Handle>
  std::unique_ptr<transport::CallHandler> method(transport::ServerCall& call, Handle handle) {
    return std::make_unique<Method<Request, Reply>>(call, loop_, std::move(handle));
  }

  std::unique_ptr<transport::CallHandler> begin(transport::ServerCall& call) override {
    const auto& path = call.path();
    if (path == "/arlo.v1.Admin/Apply") {
      return method<v1::ApplyRequest, v1::ApplyReply>(
          call, [this](const auto& request, auto* reply, const auto& done) { done(models_.apply(request, reply)); });
    }
    if (path == "/arlo.v1.Admin/Drain") {
      return method<v1::DrainRequest, v1::DrainReply>(
          call, [this](const auto& request, auto*, const auto& done) { drain(request, done); });
    }
    if (path == "/arlo.v1.Admin/GetDeployment") {
      return method<v1::GetDeploymentRequest, v1::GetDeploymentReply>(
          call, [this](const auto& request, auto* reply, const auto& done) {
            Router* router = nullptr;
            auto fault = models_.pick(request.model(), &router);
            if (!fault) *reply->mutable_deployment() = router->deployment();
            done(std::move(fault));
          });
    }
    if (path == "/arlo.v1.Admin/GetSample") {
      return method<v1::GetSampleRequest, v1::GetSampleReply>(
          call, [this](const auto& request, auto* reply, const auto& done) {
            Router* router = nullptr;
            auto fault = models_.pick(request.model(), &router);
            if (!fault) router->sample(request.model(), reply);
            done(std::move(fault));
          });
    }
    if (path == "/arlo.v1.Admin/WatchStats") return std::make_unique<StatsStream>(*this, call);
    return nullptr;
  }

  void drain(const v1::DrainRequest& request, const std::function<void(MaybeFault)>& done) {
    const auto timeout_ms = request.timeout_ms();
    Router* router = nullptr;
    auto fault = models_.pick(request.model(), &router);
    if (!fault) {
      const auto drained = [done, id = request.instance(), timeout_ms](bool in_time) {
        if (in_time) return done({});
        done(Fault{Code::kDeadlineExceeded,
                   "instance '" + id + "' still drains after " + std::to_string(timeout_ms) + " ms"});
      };
      fault = router->drain(request.instance(), TimeNs{timeout_ms} * kMs, drained);
    }
    if (fault) done(std::move(fault));
  }

  void connected(int change) override { connections_ += change; }
  void offended(const std::string& peer, std::string_view limit) override {
    log_some(LogLevel::kWarning, "client_over_limit", {{"client", peer}, {"limit", limit}});
  }

  Models& models_;
  transport::Loop loop_;
  std::unordered_set<StatsStream*> streams_;  // the loop's
  std::atomic<int> connections_{0};
  transport::Server server_;
  std::optional<transport::Listener> listener_;
  std::thread thread_;
};

AdminServer::AdminServer(Models& models, const std::string& address) : port_(std::make_unique<Port>(models, address)) {}

AdminServer::~AdminServer() = default;

const std::string& AdminServer::address() const { return port_->address; }

}  // namespace arlo::gateway
