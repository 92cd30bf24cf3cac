// gRPC's completion queues, made usable: every tag is an Event.
#pragma once

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_unary_call.h>

#include <functional>
#include <memory>
#include <utility>

#ifdef ARLO_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace arlo::gateway {

// Something that a completion queue reports. `ok` as in grpc::CompletionQueue::Next.
//
// What a thread did before it started the operation has happened for the thread that gets the event. ThreadSanitizer is
// told so here: it cannot see it in the distribution's gRPC, which is built without it.
class Event {
 public:
  virtual void proceed(bool ok) = 0;

  // What an operation is started with.
  void* tag() {
#ifdef ARLO_TSAN
    __tsan_release(this);
#endif
    return this;
  }
  static void handle(void* tag, bool ok) {
#ifdef ARLO_TSAN
    __tsan_acquire(tag);
#endif
    static_cast<Event*>(tag)->proceed(ok);
  }

 protected:
  ~Event() = default;
};

// An event that calls a member function; an object with several operations under way has one of these for each.
template <class Owner>
class MemberEvent final : public Event {
 public:
  using Member = void (Owner::*)(bool ok);
  MemberEvent(Owner& owner, Member member) : owner_(owner), member_(member) {}
  void proceed(bool ok) override { (owner_.*member_)(ok); }

 private:
  Owner& owner_;
  Member member_;
};

// Handles events until the queue is shut down and empty.
inline void poll_until_shutdown(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) Event::handle(tag, ok);
}

// A unary method with ordinary messages: waits for a call, handles it, waits for the next. Deletes itself.
template <class Request, class Response>
class UnaryMethod final : public Event {
 public:
  using Context = grpc::ServerContext;
  using Writer = grpc::ServerAsyncResponseWriter<Response>;
  using Done = std::function<void(const grpc::Status&)>;
  struct Spec {
    grpc::ServerCompletionQueue* queue;
    std::function<void(Context*, Request*, Writer*, void* tag)> accept;
    // Calls `done` once, now or later, on any thread.
    std::function<void(const Context&, const Request&, Response*, Done done)> handle;
  };

  static void serve(std::shared_ptr<const Spec> spec) { new UnaryMethod(std::move(spec)); }

  void proceed(bool ok) override {
    if (accepted_ || !ok) {
      delete this;
      return;
    }
    accepted_ = true;
    serve(spec_);
    spec_->handle(context_, request_, &response_,
                  [this](const grpc::Status& status) { writer_.Finish(response_, status, tag()); });
  }

 private:
  explicit UnaryMethod(std::shared_ptr<const Spec> spec) : spec_(std::move(spec)), writer_(&context_) {
    spec_->accept(&context_, &request_, &writer_, tag());
  }

  const std::shared_ptr<const Spec> spec_;
  Context context_;
  Request request_;
  Response response_;
  Writer writer_;
  bool accepted_ = false;
};

}  // namespace arlo::gateway
