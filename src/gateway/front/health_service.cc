#include "gateway/front/health_service.h"

namespace arlo::gateway {

void serve_health(HealthService& service, const Models& models, grpc::ServerCompletionQueue& queue) {
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;
  using Method = UnaryMethod<Request, Response>;
  Method::serve(std::make_shared<const Method::Spec>(
      Method::Spec{&queue,
                   [&service, q = &queue](auto* context, auto* request, auto* writer, void* tag) {
                     service.RequestCheck(context, request, writer, q, q, tag);
                   },
                   [&models](const auto&, const Request& request, Response* response, const auto& done) {
                     if (!request.service().empty() && request.service() != "inference.GRPCInferenceService") {
                       done(grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service '" + request.service() + "'"));
                       return;
                     }
                     response->set_status(models.ready() ? Response::SERVING : Response::NOT_SERVING);
                     done(grpc::Status::OK);
                   }}));
}

}  // namespace arlo::gateway
