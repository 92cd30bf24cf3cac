// libFuzzer on what strangers and workers send: requests are parsed, bound, cut into rows and written; answers are
// parsed and merged. Everything is compared with gateway_reference.h, which says what must hold. Built by the preset
// `fuzz`.
//
// The input: one byte of choices (2 bits each: model, limit of rows, the workers' runtime), two bytes with the size of
// the answer, little-endian, the answer, and the rest is the request. Without an answer the request serves as one.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gateway_fixture.h"
#include "gateway_reference.h"

namespace {

using namespace arlo::gateway;  // NOLINT(google-build-using-namespace): a program of one file

void require(const std::string& problem) {
  if (problem.empty()) return;
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::shared_ptr<const ModelSpec>> models = [] {
    std::vector<std::shared_ptr<const ModelSpec>> all;
    for (unsigned i = 0; i < fixture::kModels; ++i) all.push_back(fixture::model(i));
    return all;
  }();
  static_assert(fixture::kModels == 4);
  static constexpr std::int64_t kMaxRows[] = {1, 3, 8, 1 << 30};

  if (size < 3) return 0;
  const auto& model = *models[data[0] & 3];
  const RequestLimits limits{.max_rows = kMaxRows[data[0] >> 2 & 3]};
  const auto& runtime = fixture::runtimes()[data[0] >> 4 & 3];
  const std::string_view rest(reinterpret_cast<const char*>(data) + 3, size - 3);
  const auto split = std::min<std::size_t>(data[1] | data[2] << 8, rest.size());
  const std::string request(rest.substr(split));
  const std::string answer(split == 0 ? rest : rest.substr(0, split));

  require(reference::check_request(request, model, limits, fixture::runtimes()));
  require(reference::check_response(request, answer, model, limits, runtime));
  return 0;
}
