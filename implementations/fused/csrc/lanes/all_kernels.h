// Everything that is compiled once per instruction set, in dependency order. Each path's source
// file includes this once, inside its own namespace and under its own target options.
#include "lanes.h"
#include "exp2.h"
#include "elements.h"
#include "pack.h"
#include "panel_product.h"
#include "row_products.h"
#include "block_mask.h"
#include "softmax.h"
#include "forward.h"
#include "decode.h"
#include "backward.h"
#include "entry_points.h"
