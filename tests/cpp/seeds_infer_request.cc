// Writes the seeds and the dictionary of fuzz_infer_request: seeds_infer_request FOLDER DICTIONARY. Always the same
// ones.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "gateway_fixture.h"

namespace {

using namespace arlo::gateway;  // NOLINT(google-build-using-namespace): a program of one file

constexpr int kSeeds = 120;

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string seed(fixture::Random& random) {
  const auto choices = static_cast<unsigned>(fixture::below(random, 64)) | 2U << 2;  // 8 rows or any number of them
  const auto model = fixture::model(choices & 3);
  const auto& runtime = fixture::runtimes()[choices >> 4 & 3];
  inference::ModelInferRequest request;
  do {
    request = fixture::random_request(random, *model);
  } while (request.ByteSizeLong() > 1500);
  const auto padded = runtime.dynamic ? static_cast<std::int32_t>(request.inputs(0).shape(1)) : runtime.max_length;
  const auto open_dim = static_cast<std::int64_t>(fixture::below(random, 3));
  const std::string answer = fixture::random_answer(random, *model, padded, open_dim).SerializeAsString();
  std::string out = {static_cast<char>(choices), static_cast<char>(answer.size()),
                     static_cast<char>(answer.size() >> 8)};
  return out + answer +
         (fixture::chance(random, 70) ? request.SerializeAsString() : fixture::serialize_unpacked(request));
}

// What the code compares with: names, datatypes, and the parameters that mean something.
std::string dictionary() {
  std::string out;
  auto add = [&out](const std::string& word) {
    out += '"';
    for (const char c : word) {
      char hex[5];
      std::snprintf(hex, sizeof(hex), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += hex;
    }
    out += "\"\n";
  };
  for (unsigned i = 0; i < fixture::kModels; ++i) {
    const auto model = fixture::model(i);
    for (const auto& spec : model->inputs) add(spec.name);
    for (const auto& spec : model->outputs) add(spec.name);
  }
  for (const char* word : {"INT64",
                           "INT32",
                           "FP32",
                           "FP16",
                           "UINT8",
                           "BYTES",
                           "sequence_id",
                           "sequence_start",
                           "priority",
                           "arlo_class",
                           "timeout",
                           "triton_",
                           "triton_enable_empty_final_response",
                           "shared_memory_region",
                           "classification",
                           "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                           "\x80\x80\x80\x80\x10",
                           "\xed\xa0\x80",
                           "\x12\x02\x10\x01",
                           "\x1a\x02\x01\x04",
                           "\x2a\x00"}) {
    add(word);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FOLDER DICTIONARY\n", argv[0]);
    return 2;
  }
  try {
    std::filesystem::create_directories(argv[1]);
    fixture::Random random(1);
    for (int i = 0; i < kSeeds; ++i)
      write(std::filesystem::path(argv[1]) / ("seed-" + std::to_string(i)), seed(random));
    write(argv[2], dictionary());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
