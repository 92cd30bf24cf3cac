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
#include "text/job.h"
#include "text/tokenizer.h"

namespace arlo::gateway {

// How a model's text becomes token ids.
struct TextSpec {
  text::Tokenizer tokenizer;                         // of no use where it is made elsewhere
  std::string no_text;                               // why it takes none; empty: it does
  std::shared_ptr<const text::Elsewhere> elsewhere;  // a tokenizer for the helpers; null: the one above is used
};

// From now on helpers run, and take the tokenizers that are not known here. Before a deployment is read.
void text_has_helpers();

// The tokens of texts, or of pairs where there are `seconds` (as many). Where they are made elsewhere, what has to be
// asked is put into `job`, and UNAVAILABLE comes back: to be called again with the same when the job is done.
MaybeFault encode_texts(const TextSpec& spec, const std::vector<std::string_view>& texts,
                        const std::vector<std::string_view>& seconds, const text::Limits& limits, text::Job* job,
                        std::vector<text::Encoding>* out);
// Of a job that has something to ask, or is done.
MaybeFault wait_for(text::Job* job, const TextSpec& spec);

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
