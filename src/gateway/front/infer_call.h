// The calls for inference of the data port; the HTTP API makes the first one, too.
#pragma once

#include <memory>
#include <unordered_set>

#include "gateway/front/data_service.h"
#include "transport/server_session.h"

namespace arlo::gateway {

// One unary ModelInfer call, on its lane's thread.
std::unique_ptr<transport::CallHandler> infer_call(DataService& service, Lane& lane, transport::ServerCall& call);

class OpenStream {
 public:
  // The gateway stops: further requests are refused. When the open ones are answered, the stream ends UNAVAILABLE,
  // because a request still on its way to us gets no answer.
  virtual void close() = 0;

 protected:
  ~OpenStream() = default;
};
using OpenStreams = std::unordered_set<OpenStream*>;  // of a lane

// One ModelStreamInfer stream, on its lane's thread: requests run concurrently, answers return in completion order, and
// clients match ids.
std::unique_ptr<transport::CallHandler> stream_call(DataService& service, Lane& lane, OpenStreams& streams,
                                                    transport::ServerCall& call);

}  // namespace arlo::gateway
