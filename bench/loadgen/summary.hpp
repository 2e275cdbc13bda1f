// Percentiles of measured times.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

namespace summary {

inline double percentile(const std::vector<double>& sorted, double share) {
    if (sorted.empty()) return 0;
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    return sorted[std::max<std::size_t>(rank, 1) - 1];
}

inline double mean(const std::vector<double>& values) {
    if (values.empty()) return 0;
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// "p50_us": …, "p90_us": … as members of a JSON object; 0 where nothing was measured.
inline std::string json(std::vector<double> microseconds, const std::string& prefix = "") {
    std::sort(microseconds.begin(), microseconds.end());
    std::string members = "\"" + prefix + "count\": " + std::to_string(microseconds.size());
    const auto add = [&](const char* name, double value) {
        char text[64];
        std::snprintf(text, sizeof text, ", \"%s%s_us\": %.1f", prefix.c_str(), name, value);
        members += text;
    };
    add("mean", mean(microseconds));
    add("p50", percentile(microseconds, 0.5));
    add("p90", percentile(microseconds, 0.9));
    add("p99", percentile(microseconds, 0.99));
    add("max", microseconds.empty() ? 0 : microseconds.back());
    return members;
}

}  // namespace summary
