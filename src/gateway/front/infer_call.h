// One unary ModelInfer call.
#pragma once

#include <grpcpp/support/async_unary_call.h>

#include <atomic>

#include "gateway/desk/call.h"
#include "gateway/front/data_service.h"
#include "gateway/front/rpc.h"
#include "gateway/front/unsent.h"

namespace arlo::gateway {

// Waits for a call on its queue, then makes the next to wait there. Deletes itself when the answer is out and gRPC has
// said that the call is over.
class InferCall final : public Call {
 public:
  InferCall(DataService& service, grpc::ServerCompletionQueue& queue);

  void complete() override;

 private:
  void received(bool ok);
  void over(bool ok);      // answered, cancelled by the client, or past its deadline
  void finished(bool ok);  // the answer is sent or given up
  void release();

  DataService& service_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  grpc::ByteBuffer incoming_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_{&context_};
  UnsentAnswers::Answer unsent_;
  MemberEvent<InferCall> received_{*this, &InferCall::received};
  MemberEvent<InferCall> over_{*this, &InferCall::over};
  MemberEvent<InferCall> finished_{*this, &InferCall::finished};
  std::atomic<int> events_left_{2};  // over, finished
};

}  // namespace arlo::gateway
