#include "gateway/fleet/health.h"

#include <string>
#include <utility>

#include "base/clock.h"
#include "kserve.h"

namespace arlo::gateway {
namespace {

constexpr std::string_view kReadyMethod = "/inference.GRPCInferenceService/ModelReady";

// Used on the lane's thread. Lives until its open call has ended, although it may have reported earlier.
class HealthCheck final : public transport::Loop::Timer, public std::enable_shared_from_this<HealthCheck> {
 public:
  HealthCheck(HealthListener& listener, std::shared_ptr<Instance> instance, Lane& lane)
      : listener_(listener), instance_(std::move(instance)), lane_(lane) {}
  ~HealthCheck() { lane_.loop().clear(*this); }
  HealthCheck(const HealthCheck&) = delete;
  HealthCheck& operator=(const HealthCheck&) = delete;

  void begin(std::uint32_t timeout_ms) {
    timeout_ms_ = timeout_ms;
    lane_.loop().set(*this, now_ns() + TimeNs{timeout_ms} * 1'000'000);
    ask();
  }
  void due() override {
    const auto kept = shared_from_this();
    say(Fault{Code::kDeadlineExceeded, "no answer within " + std::to_string(timeout_ms_) + " ms"}, false);
    lane_.to(instance_->endpoint).give_up(call_);
  }

 private:
  void ask() {
    inference::ModelReadyRequest request;
    request.set_name(instance_->members[asked_].runtime.name);
    call_ = lane_.to(instance_->endpoint)
                .call(kReadyMethod, request.SerializeAsString(),
                      [self = shared_from_this()](transport::Answer answer) { self->answered(std::move(answer)); });
  }
  void answered(transport::Answer answer) {
    if (said_) return;
    inference::ModelReadyResponse response;
    MaybeFault fault;
    if (answer.status != 0) {
      fault = Fault{static_cast<Code>(answer.status), std::move(answer.message)};
    } else if (!response.ParseFromString(answer.bytes)) {
      fault = Fault{Code::kInternal, "it answers a health check with something else"};
    }
    if (!fault && response.ready() && ++asked_ < instance_->members.size()) {
      ask();
    } else {
      say(fault, response.ready());
    }
  }
  void say(const MaybeFault& fault, bool ready) {
    said_ = true;
    lane_.loop().clear(*this);
    listener_.health_done(instance_, fault, ready);
  }

  HealthListener& listener_;
  const std::shared_ptr<Instance> instance_;
  Lane& lane_;
  transport::Channel::CallId call_;
  std::uint32_t timeout_ms_ = 0;
  std::size_t asked_ = 0;  // runtimes that are ready
  bool said_ = false;
};

}  // namespace

void check_health(HealthListener& listener, const std::shared_ptr<Instance>& instance, std::uint32_t timeout_ms,
                  Lane& lane) {
  lane.loop().run_here([&listener, instance, timeout_ms, &lane] {
    std::make_shared<HealthCheck>(listener, instance, lane)->begin(timeout_ms);
  });
}

}  // namespace arlo::gateway
