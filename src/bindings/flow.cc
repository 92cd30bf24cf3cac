// The decisions of cascades in Python, for arrays of rows: for the simulator and for tests against NumPy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "flow/cascade/cascade.h"
#include "flow/rules/audit.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace arlo::flow {
namespace {

template <typename T>
using Rows = nb::ndarray<const T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RuleOf = std::tuple<std::string, ByLength, double, double>;  // kind, t, c, k

template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> array(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return {kept->data(), {kept->size()}, owner};
}

using Onto = std::tuple<Rows<std::uint8_t>, std::vector<std::int64_t>, Rows<std::int64_t>>;

std::vector<std::uint8_t> bytes(const Rows<std::uint8_t>& from) { return {from.data(), from.data() + from.size()}; }

void bind_values(nb::module_& m) {
  nb::class_<Rules>(m, "CascadeRules", "What a cascade decides by: arlo.cascade.spec.Rules.")
      .def(
          "__init__",
          [](Rules* self, const std::vector<std::vector<RuleOf>>& prices, const std::vector<std::vector<double>>& skip,
             double alpha, const std::string& mean_over, bool to_level, std::int32_t min_words, double alpha_max,
             double most_removed, const std::string& ensemble, std::int32_t start) {
            std::vector<std::vector<Guard>> guards;
            for (const auto& price : prices) {
              auto& row = guards.emplace_back();
              for (const auto& [kind, t, c, k] : price) {
                row.push_back({.rule = named<Guard::Rule>(kind, {"hard", "soft"}), .below = t, .c = c, .k = k});
              }
            }
            new (self) Rules{std::move(guards),
                             start,
                             skip,
                             {alpha, mean_over == "all", to_level, min_words, alpha_max, most_removed},
                             named<Ensemble>(ensemble, {"none", "raw", "calibrated"})};
          },
          "prices"_a, nb::kw_only(), "skip"_a = std::vector<std::vector<double>>{}, "alpha"_a = 0.0,
          "mean_over"_a = "words", "to_level"_a = true, "min_words"_a = 4, "alpha_max"_a = 0.0, "most_removed"_a = 0.5,
          "ensemble"_a = "none", "start"_a = 0,
          "`prices`: [price][stage but the last] of (kind, [(tokens up to, threshold)], c, k).");
  nb::class_<Judge>(m, "CascadeStage", "How confidence comes from what a stage answers.")
      .def(
          "__init__",
          [](Judge* self, const std::string& kind, double t, const ByLength& by_length,
             const std::vector<double>& scale, const std::vector<double>& bias,
             const std::vector<std::pair<double, double>>& curve, const std::string& score, const std::string& over,
             bool squared, const std::vector<std::uint32_t>& label_order) {
            new (self)
                Judge{.label_order = label_order,
                      .calibrator = {named<Calibrator::Kind>(kind, {"temperature", "vector", "dirichlet", "isotonic"}),
                                     t, by_length, scale, bias, curve},
                      .score = named<Score>(score, {"max", "margin", "entropy", "output"}),
                      .over = named<Over>(over, {"min", "mean", "q10"}),
                      .squared = squared};
          },
          nb::kw_only(), "kind"_a = "temperature", "t"_a = 1.0, "by_length"_a = ByLength{},
          "scale"_a = std::vector<double>{}, "bias"_a = std::vector<double>{},
          "curve"_a = std::vector<std::pair<double, double>>{}, "score"_a = "max", "over"_a = "min",
          "squared"_a = false, "label_order"_a = std::vector<std::uint32_t>{})
      .def(
          "confidence",
          [](const Judge& self, const Table& logits, const Rows<std::int32_t>& length) {
            const std::size_t labels = logits.shape(1);
            std::vector<double> made(logits.shape(0));
            std::vector<double> scratch;
            for (std::size_t i = 0; i < made.size(); ++i) {
              const Signals signals{.logits = {logits.data() + i * labels, labels}, .labels = labels};
              made[i] = confidence(self, signals, length.data()[i], scratch);
            }
            return array(std::move(made));
          },
          "logits"_a, "length"_a, "Of float32 logits [rows, labels] of rows of int32 tokens [rows]: float64 [rows].");
}

void bind_decisions(nb::module_& m) {
  m.def(
      "cascade_decide",
      [](const Rules& by, std::int32_t stage, const Rows<double>& conf, const Rows<std::int32_t>& length,
         std::uint64_t seed, std::int32_t price, std::int32_t last, double least, StageSet present) {
        CascadeSpec spec;
        spec.stages.resize(by.prices.front().size() + 1);
        spec.labels = 1;
        validate(by, spec);
        std::vector<std::int64_t> to(conf.size());
        std::vector<std::int64_t> reason(conf.size());
        for (std::size_t i = 0; i < to.size(); ++i) {
          const RowFacts row{.seed = seed, .row = i, .length = length.data()[i], .last = last, .least = least};
          const Decision decision = decide(spec, by, stage, conf.data()[i], row, present, price);
          to[i] = decision.to;
          reason[i] = decision.exit ? static_cast<std::int64_t>(decision.reason) : -1;
        }
        return nb::make_tuple(array(std::move(to)), array(std::move(reason)));
      },
      "rules"_a, "stage"_a, "confidence"_a, "length"_a, nb::kw_only(), "seed"_a = 0, "price"_a = 0,
      "last"_a = kMaxStages - 1, "least"_a = -1.0, "present"_a = 0xff,
      nb::sig(
          "def cascade_decide(rules: CascadeRules, stage: int, confidence: NDArray[numpy.float64], length: "
          "NDArray[numpy.int32], *, seed: int = 0, price: int = 0, last: int = 7, least: float = -1.0, present: int "
          "= 255) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]"),
      "Where rows 0, 1, ... go from a stage: (next stage, -1 for exit; reason, -1 for none), int64 [rows].");
  m.def(
      "cascade_prune",
      [](const Rules& by, const Rows<std::uint8_t>& word_start, const std::vector<std::int64_t>& special,
         const std::vector<std::int64_t>& keep, const Rows<std::int64_t>& ids, const Rows<float>& importance,
         const std::vector<std::int32_t>& levels, const std::optional<Onto>& onto, std::int32_t under) {
        const Vocabulary vocabulary{bytes(word_start), special, keep};
        std::vector<std::uint32_t> kept;
        std::optional<Vocabulary> other;
        std::optional<Rewording> to;
        std::size_t whole = ids.size();
        if (onto) {
          const auto& [starts, specials, tokens] = *onto;
          other.emplace(Vocabulary{bytes(starts), specials, {}});
          to.emplace(Rewording{*other, {tokens.data(), tokens.size()}});
          whole = tokens.size();
        }
        prune(by.prune, vocabulary, {ids.data(), ids.size()}, {importance.data(), importance.size()}, levels, kept,
              to ? &*to : nullptr, under);
        std::vector<std::int64_t> places(kept.begin(), kept.end());
        if (kept.empty()) {
          for (std::size_t i = 0; i < whole; ++i) places.push_back(static_cast<std::int64_t>(i));
        }
        return array(std::move(places));
      },
      "rules"_a, "word_start"_a, "special"_a, "keep"_a, "ids"_a, "importance"_a, "levels"_a, "onto"_a = nb::none(),
      "under"_a = 0,
      nb::sig("def cascade_prune(rules: CascadeRules, word_start: NDArray[numpy.uint8], special: Sequence[int], keep: "
              "Sequence[int], ids: NDArray[numpy.int64], importance: NDArray[numpy.float32], levels: Sequence[int], "
              "onto: tuple[NDArray[numpy.uint8], Sequence[int], NDArray[numpy.int64]] | None = None, under: int = 0) "
              "-> NDArray[numpy.int64]"),
      "Places of the tokens of a row that are kept; `word_start`: a bit for each id. `onto`: what they are places of.");
  m.def(
      "cascade_drift",
      [](double epsilon, double alpha, const Rows<std::uint8_t>& differs) {
        DisagreementTest test(epsilon, alpha);
        for (std::size_t i = 0; i < differs.size(); ++i) {
          test.add(differs.data()[i] != 0);
          if (test.alarm()) return static_cast<std::int64_t>(i);
        }
        return std::int64_t{-1};
      },
      "epsilon"_a, "alpha"_a, "differs"_a,
      nb::sig("def cascade_drift(epsilon: float, alpha: float, differs: NDArray[numpy.uint8]) -> int"),
      "The shadow row whose answer raised the alarm; -1: none did.");
  m.def("cascade_hash01", &hash01, "seed"_a, "row"_a, "stage"_a, "u in [0, 1) of a row at a stage.");
}

}  // namespace

void bind(nb::module_& m) {
  bind_values(m);
  bind_decisions(m);
}

}  // namespace arlo::flow
