// A deployment as the data path reads it: checked once, then immutable and shared.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "rewrite/spec.h"
#include "text/tokenizer.h"

namespace arlo::gateway {

// How a model's text becomes token ids.
struct TextSpec {
  text::Tokenizer tokenizer;
  std::string no_text;  // why it takes none; empty: it does
};

// Checks a deployment as a whole; the fault names the field and what is wrong with it.
MaybeFault check_deployment(const v1::Deployment& deployment);

// Its models, the first one first.
std::vector<const v1::Model*> models_of(const v1::Deployment& deployment);

// What can be asked for by name: its models, its cascades and its pipelines.
std::vector<std::string> names_of(const v1::Deployment& deployment);

// A model answers for a cascade or a pipeline, and clients do not see it.
bool inner(const v1::Deployment& deployment, std::string_view model);

// The same, of a pipeline.
bool of_pipeline(const v1::Deployment& deployment, std::string_view model);

// The name of the model that one of its runtimes is of.
const std::string& model_of(const v1::Deployment& deployment, const v1::Runtime& runtime);

// Of a tokenizer.json; null: of none. As long as one is in use it is made once: it takes a while, and models and
// versions share it. Thread-safe.
std::shared_ptr<const TextSpec> make_text(const std::string& tokenizer_json);

// One of its models; `deployment` must have passed check_deployment.
std::shared_ptr<const ModelSpec> make_model(const v1::Deployment& deployment, const v1::Model& from,
                                            std::uint16_t variant);

}  // namespace arlo::gateway
