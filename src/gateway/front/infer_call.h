// One unary ModelInfer call.
#pragma once

#include <memory>
#include <string>

#include "gateway/desk/call.h"
#include "gateway/front/data_service.h"
#include "gateway/front/unary.h"

namespace arlo::gateway {

// Runs on its lane's thread, except complete(). Deletes itself once it is complete and its client has the answer or has
// gone.
class InferCall final : public Call {
 public:
  static std::unique_ptr<transport::CallHandler> begin(DataService& service, Lane& lane, transport::ServerCall& call);

  void complete() override;

 private:
  class Handler;
  InferCall(DataService& service, Lane& lane, transport::ServerCall& call);
  ~InferCall() override = default;

  void received(std::string bytes);
  void bind();
  void bound(const MaybeFault& refusal);  // empty fault: the request is valid
  void closed();
  void answer();
  void release();

  DataService& service_;
  transport::ServerCall* server_call_;  // null once it is over
  bool busy_ = false;                   // another thread reads the request or writes its answer
  bool submitted_ = false;
  bool completed_ = false;
  bool closed_ = false;
};

}  // namespace arlo::gateway
