// Models, runtimes and messages for the tests of the gateway's pure part.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kserve.h"
#include "rewrite/model.h"

namespace arlo::gateway {

inline std::string faults(const MaybeFault& fault) { return fault ? fault->message : ""; }

}  // namespace arlo::gateway

namespace arlo::gateway::fixture {

// A deployment that passes check_deployment: one input of ids (INT64), mask and types (optional, filled with 7), the
// outputs `hidden` [rows, tokens, 2] FP32, `pooled` [rows, 3] FP32 and `label` [rows, 1] BYTES; runtimes of 8, 16, 32.
v1::Deployment deployment();

// Small models that between them have every kind of input and output; index below kModels.
inline constexpr unsigned kModels = 4;
std::shared_ptr<const ModelSpec> model(unsigned index);

// Static ones of 8, 16 and 32 tokens and a dynamic one of 32.
const std::vector<RuntimeInfo>& runtimes();

using Random = std::mt19937_64;
inline std::uint64_t below(Random& random, std::uint64_t bound) { return random() % bound; }  // same on every platform
inline bool chance(Random& random, unsigned percent) { return below(random, 100) < percent; }

std::string raw64(const std::vector<std::int64_t>& values);
std::string raw32(const std::vector<std::int64_t>& values);

// A request that must be accepted: rows of lengths 1 to 32, padded anywhere, raw or typed, with or without a mask and
// optional inputs, with parameters of every kind.
inference::ModelInferRequest random_request(Random& random, const ModelSpec& model);

// What a sound worker answers to one row sent with `padded` tokens; in some order, with `tail` dims of its own choice
// where the model leaves them open.
inference::ModelInferResponse random_answer(Random& random, const ModelSpec& model, std::int32_t padded,
                                            std::int64_t open_dim);

// As an encoder that knows no packed fields writes it: every element of shapes and typed contents with its own tag.
std::string serialize_unpacked(const inference::ModelInferRequest& request);

// A few of the usual accidents: bytes flipped, cut out, doubled, inserted.
std::string mutated(Random& random, std::string body);

}  // namespace arlo::gateway::fixture
