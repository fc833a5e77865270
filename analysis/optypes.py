"""Which class an operator type belongs to. One table serves cast share, movement share, FLOPs and layers.

A type comes in many spellings of one thing: `MatMulV3`, `aclnnMatmul_MatMulV3Common_MatMulV3`, `MatMul-op12`.
`normalise` brings them to one, the table gives the class, patterns serve types the table does not list.
"""

from __future__ import annotations

import re
from functools import lru_cache

import polars as pl

from analysis.words import mapped

TABLE = {
    "cast": "cast castlike npudtypecast",
    "movement": """
        transpose transposebatch confusiontranspose transdata reshape flatten squeeze unsqueeze expanddims
        stridedslice slice slicewithaxes slicewrite slicelastdim narrow concat concatoffset concatv split splitv
        splitnd splitwithsize chunk pack stack unpack unstack unbind tensormove tensorcopy identity identityn copy
        viewcopy asstrided broadcastto expand memset zeros zeroslike ones oneslike fill full fulllike fills eye tile
        repeat repeatinterleave pad padding mirrorpad constantpad slicegrad stridedslicegrad concatgrad
        gatherelements gathernd gatherd gatherdgrad gatherelementsgrad index indexselect indexput indexputwithsort
        scatter scatterelements scatterupdate scatternd scatterndupdate scatternadd tensorscatterupdate maskedselect
        maskedscatter roll flip reverse contiguous atomicaddrclean atomicaddrcleanzero range arange linspace
        assign memcpyasync memcpy clone repack depthtospace spacetodepth im2col col2im
    """,
    "matmul": """
        matmul matmulext batchmatmul matmulbias linear dense addmm baddbmm mm bmm gemm fullyconnection fullyconnect
        transposebatchmatmul quantmatmul quantbatchmatmul weightquantbatchmatmul batchmatmulext matmulcompress
        matmulallreduce matmulreducescatter allgathermatmul matmulgrad batchmatmulgrad einsum batchmatmulfixedc
        fusedmatmul
    """,
    "grouped_matmul": """
        groupedmatmul groupmatmul gmm groupedmatmulswigluquant groupedmatmulfinalizerouting groupedmatmuladd
        groupedmatmulinplaceadd quantgroupedmatmul alltoallvgroupedmatmul groupedmatmulalltoallv gmmgrad
    """,
    "conv": """
        conv2d conv3d conv1d convolution conv depthwiseconv2d depthwiseconv2dnative conv2dtranspose conv3dtranspose
        conv2dbackpropfilter conv2dbackpropinput conv3dbackpropfilter conv3dbackpropinput
        depthwiseconv2dbackpropinput depthwiseconv2dbackpropfilter conv2dgrad convolutionbackward deformableconv2d
        conv2dcompress extendconv2d quantconv2d quantconv3d
    """,
    "attention": """
        flashattentionscore flashattention promptflashattention increflashattention fusedinferattentionscore
        pagedattention ringattentionupdate multiheadattention scaleddotproductattention fusionattention
        nsacompressattention nsaselectedattention sparseflashattention lightningindexer mlaprolog mlapreprocess
        kvquantsparseflashattention flashattentionvarlenscore flashattentionunpaddingscore blocksparseattention
    """,
    "attention_grad": """
        flashattentionscoregrad flashattentiongrad fusionattentiongrad nsacompressattentiongrad
        nsaselectedattentiongrad sparseflashattentiongrad flashattentionunpaddingscoregrad
        flashattentionvarlenscoregrad multiheadattentiongrad lightningindexergrad sparselightningindexergradklloss
    """,
    "softmax": """
        softmax scaledmaskedsoftmax scaleduppertriangmaskedsoftmax maskedsoftmax maskedsoftmaxwithrelposbias
        softmaxwithdropout softmaxext attentionsoftmax attentionscore
    """,
    "softmax_grad": """
        softmaxgrad softmaxgradext scaledmaskedsoftmaxgrad softmaxbackward confusionsoftmaxgrad
        scaleduppertriangmaskedsoftmaxgrad attentionscoregrad
    """,
    "norm": """
        rmsnorm layernorm layernormext groupnorm groupnormsilu batchnorm instancenorm addrmsnorm addlayernorm
        deepnorm addrmsnormcast addrmsnormquant rmsnormquant normalize gemmarmsnorm addrmsnormdynamicquant
        fusedrmsnorm fusedlayernorm fusedbatchnorm bninfer bntrainingreduce bntrainingupdate syncbatchnorm
        bninference normropeconcat qknorm
    """,
    "norm_grad": """
        rmsnormgrad layernormgrad layernormgradext layernormxbackprop layernormbetagammabackprop groupnormgrad
        batchnormgrad instancenormgrad deepnormgrad addrmsnormgrad addlayernormgrad layernormbackward
        groupnormsilugrad bntrainingreducegrad bntrainingupdategrad groupnormswishgrad bninfergrad rmsnormbackward
        normropeconcatgrad fuseddbndw bntrainingupdatereducegrad syncbatchnormbackward
    """,
    "position": """
        rotarypositionembedding applyrotaryposemb rotarymul ropewithsincoscache rotaryemb rope interleaverope
        applyrotaryembedding rotarypositionembeddingv kvrmsnormropecache ropematrix alibi qkvrmsnormropecache
        rotateembedding
    """,
    "position_grad": "rotarypositionembeddinggrad applyrotaryposembgrad rotarymulgrad ropegrad rotaryembgrad",
    "activation": """
        gelu fastgelu geluext quickgelu silu swish swiglu geglu relu relu6 leakyrelu elu selu sigmoid tanh mish
        hswish hardswish hsigmoid hardsigmoid glu prelu softplus softsign erf swigluquant dequantswigluquant
        swigluclip clippedswiglu geluerf
    """,
    "activation_grad": """
        gelugrad fastgelugrad gelubackward silugrad swishgrad swiglugrad geglugrad relugrad relu6grad leakyrelugrad
        elugrad selugrad sigmoidgrad tanhgrad mishgrad hswishgrad hardswishgrad hsigmoidgrad glugrad prelugrad
        softplusgrad geluextgrad quickgelugrad thresholdgrad clippedswiglugrad
    """,
    "elementwise": """
        tril triu add addn adds axpy addcmul addcdiv sub subs rsubs mul muls div divs realdiv divnonan floordiv
        floormod mod
        fmod remainder truncatediv truncatemod pow pows powscalartensor powtensorscalar powtensortensor square sqrt
        rsqrt reciprocal inv exp expm1 exp2 log log1p log2 abs neg sign floor ceil round trunc cos sin tan cosh sinh
        acos asin atan atan2 atanh erfc maximum minimum maxs mins clip clipbyvalue clamp clampmin clampmax
        cliptensor equal notequal greater greaterequal less lessequal eqscalar nescalar gtscalar gescalar ltscalar
        lescalar eqtensor netensor gttensor letensor lttensor getensor logicaland logicalor logicalnot logicalxor
        bitwiseand bitwiseor bitwisenot bitwisexor leftshift rightshift select where maskedfill maskedfillscalar
        isnan isinf isfinite nantonum lerp biasadd bias scale fusedmuladd fusedmuladdn fusedmul squareddifference
        sqrtgrad rsqrtgrad reciprocalgrad invgrad maximumgrad minimumgrad cumsum cumprod accumulaten assignadd
        assignsub assignaddvariable addv accumulate foreachaddlist foreachmulscalar foreachaddscalar foreachsublist
        foreachmullist foreachdivlist foreachdivscalar foreachsqrt foreachpowscalar foreachaddcdivscalar
        foreachaddcmulscalar foreachneg foreachexp foreachlerpscalar foreachcopy quantize ascendquant ascenddequant
        dequant dynamicquant ascendantiquant threshold xdivy xlogy erfinv lgamma digamma
    """,
    "reduction": """
        reducesum reducemean reducemax reducemin reduceprod reduceall reduceany reducestd reducestdwithmean
        reducevar reducelogsumexp sum mean max min prod amax amin all any norm lpnorm lpnormreduce lpnormupdate
        l2loss squaresum squaresumall argmax argmin argmaxwithvalue argminwithvalue biasaddgrad logsumexp
        foreachnorm cummax var std varmean reducenansum clipbynormnodivsum topk sort argsort nonzero bincount unique
        unique2 histogram count countnonzero maxdim mindim npuallocfloatstatus npuclearfloatstatus npugetfloatstatus
        nonfinitecheck foreachnonfinitecheckandunscale allfinite isclose
    """,
    "random": """
        dropout dropoutdomask dropoutgenmask dropoutext dropoutgrad dropoutbackward dropoutv dsagenbitmask dsarandom
        dsarandomuniform dsarandomnormal dsarandomtruncatednormal dsastatelessgenbitmask dsastatelessrandomuniform
        dsastatelessrandomnormal statelessdropoutgenmask statelessrandomuniform statelessrandomnormal randomuniform
        randomnormal uniform normal multinomial bernoulli randperm philox truncatednormal standardnormal randint
        randn rand
    """,
    "embedding": """
        embedding embeddinglookup embeddingdensegrad embeddinggrad embeddingdensebackward embeddingbag gather
        gatherext gathergrad unsortedsegmentsum sparsegather embeddinghashlookup vocabparallelembedding
        embeddingtable embeddingrenorm unsortedsegmentsumd
    """,
    "moe": """
        moegatingtopk moegatingtopksoftmax moegatingtopksoftmaxgrad moeinitrouting moeinitroutingquant
        moecomputeexperttokens moefinalizerouting moedistributedispatch moedistributecombine moetokenpermute
        moetokenunpermute moetokenpermutegrad moetokenunpermutegrad moererouting moefinalizeroutinggrad
        moeinitroutinggrad tokenpermute tokenunpermute moetokenpermutewithep moetokenunpermutewithep
        moetokenpermutewithroutingmap moetokenunpermutewithroutingmap moetokenpermutewithroutingmapgrad
        moetokenunpermutewithroutingmapgrad moefusedtopk moegatingtopkhash moedistributecombineaddrmsnorm
        moetokenunpermutewithepgrad moetokenpermutewithepgrad moefusedaddtopk moeupdateexpert moeeplbupdateexpert
    """,
    "optimizer": """
        adam adamw adamweightdecay fusedadamweightdecay applyadam applyadamw applyadamwithamsgrad applymomentum
        momentum fusedmulapplymomentum sgd applysgd applyrmsprop applyadagrad applyadadelta applyftrl lamb
        lambapplyoptimizerassign lambapplyweightassign lambnextmv lambnextright lambupdatewithlr applylamb lars
        larsvupdate adafactor applyfusedema applyfusedemaadam adamapplyone adamapplyonewithdecay adamapplyoneassign
        adamapplyonewithdecayassign came muon lion applygradientdescent applyproximaladagrad
        fusedcastadamweightdecay fusedsparseadam npuapplyadam npufusedadamw applycamepart1 applycamepart2
        applycamepart3 applycamepart4 applyadammomentum emaadamw
    """,
    "loss": """
        crossentropyloss crossentropylossgrad softmaxcrossentropywithlogits sparsesoftmaxcrossentropywithlogits
        nllloss nlllossgrad crossentropy logsoftmax logsoftmaxgrad logsoftmaxext sigmoidcrossentropywithlogits
        onehot sigmoidcrossentropywithlogitsgrad mseloss mselossgrad smoothl1loss smoothl1lossgrad kldiv
        kldivlossgrad bceloss binarycrossentropy binarycrossentropygrad fusedlinearcrossentropyloss
        fusedlinearonlinemaxsum fusedlinearcrossentropylossgrad fusedcrossentropylosswithmaxsum
        crossentropylosswithmaxsum vocabparallelcrossentropy onehotext bcewithlogits bcewithlogitsgrad
        sparsesoftmaxcrossentropywithlogitsgrad
    """,
    "communication": """
        allreduce allgather reducescatter alltoall alltoallv alltoallvc broadcast send receive recv reduce scatterv
        gatherv batchsendrecv barrier isend irecv innercommallreduce innercommallgather innercommreducescatter
        allgatherv reducescatterv neighborexchange neighborexchangev
    """,
    "other": """
        print getnext streamsend streamrecv streamactive labelset labelgoto labelswitch shape size depend load
        updatestate
    """,
}
"""Class -> normalised type names of it."""

_PATTERNS = (
    (r"^hcom|^hccl|^lccl|allreduce|allgather|reducescatter|alltoall|sendrecv", "communication"),
    (r"pool", "other"),
    (r"moe|topkgating|router|expert", "moe"),
    (r"(grouped|group)(mat)?mul|gmm", "grouped_matmul"),
    (r"attention.*(grad|backward|bwd)", "attention_grad"),
    (r"attention|^mla", "attention"),
    (r"conv[123]d|convolution", "conv"),
    (r"matmul|gemm|^bmm|^mm$", "matmul"),
    (r"crossentropy|loss|logsoftmax", "loss"),
    (r"softmax.*(grad|backward|bwd)", "softmax_grad"),
    (r"softmax", "softmax"),
    (r"rotary|rope", "position"),
    (r"(rms|layer|group|batch|instance)norm.*(grad|backward|bwd|backprop)", "norm_grad"),
    (r"(rms|layer|group|batch|instance|deep)norm|^bn(training|infer)", "norm"),
    (r"^(apply|fused)?(adam|lamb|lion|muon|sgd|momentum|came|adafactor)", "optimizer"),
    (r"(gelu|silu|swiglu|swish|relu|sigmoid|tanh|glu).*(grad|backward|bwd)", "activation_grad"),
    (r"gelu|silu|swiglu|swish|relu|sigmoid|tanh|glu$", "activation"),
    (r"embedding", "embedding"),
    (r"dropout|random|^dsa|bitmask", "random"),
    (r"^cast|cast$", "cast"),
    (
        r"transpose|reshape|slice|concat|split|^pad|tensormove|copy|scatter|gather|permute|zeros|ones|fill|transdata|memset",
        "movement",
    ),
    (r"^reduce|argmax|argmin|topk|norm$|sum$", "reduction"),
    (r"^foreach|^logical|^bitwise|quant", "elementwise"),
)
_FUSED_ORDER = (
    *("conv", "attention_grad", "attention", "grouped_matmul", "matmul", "loss", "softmax_grad", "softmax"),
    *("norm_grad", "norm", "moe", "optimizer", "activation_grad", "activation", "reduction", "embedding"),
    *("random", "elementwise", "movement", "cast"),
)
"""Class of a fused kernel: that of its heaviest part."""
MOVEMENT_CLASSES = ("cast", "movement")
"""Classes that move or convert data without computing: `movement_ratio` counts both, `cast_ratio` only the first."""


@lru_cache(maxsize=4096)
def op_class(type: str) -> str:
    """Class of an operator type in any spelling; `other` where nothing is known of it."""
    fused = re.match(r"(?i)^(?:fusionop|fused)_(.+)", type.strip())
    if fused:
        found = {op_class(part) for part in fused[1].split("_") if part}
        return next((name for name in _FUSED_ORDER if name in found), "other")
    name = normalise(type)
    variants = (name, *(name.removesuffix(end) for end in ("d", "vm", "ext")), name.removeprefix("fused"))
    for spelling in variants:
        if spelling in _lookup():
            return _lookup()[spelling]
    return next((cls for pattern, cls in _PATTERNS if re.search(pattern, name)), "other")


def normalise(type: str) -> str:
    """Lower-case core of a type: no scope, no aclnn wrapper, no `-opN`, no version suffix, no `Inplace`.

    >>> normalise("aclnnInplaceAdd_AddAiCore_Add"), normalise("MatMulV3"), normalise("hcom_allReduce_")
    ('add', 'matmul', 'hcomallreduce')
    """
    text = re.sub(r"-op\d+$", "", type.strip().rsplit("/", 1)[-1].rsplit("::", 1)[-1])
    if text.startswith("aclnn") and "_" in text:
        text = text.rstrip("_").rsplit("_", 1)[-1]
    text = re.sub(r"[^a-z0-9]", "", text.lower())
    text = text.removeprefix("aclnn").removeprefix("inplace")
    return re.sub(r"v\d+$", "", text) or text


def with_class(kernels: pl.DataFrame) -> pl.DataFrame:
    """`kernels` with a column `class`; null where the type is unknown; communication rows have their own."""
    named = mapped(kernels["type"], _classes)
    kind = pl.when(pl.col("kind") == "communication").then(pl.lit("communication")).otherwise(pl.col("class"))
    return kernels.with_columns(named.alias("class")).with_columns(kind.alias("class"))


def _classes(types: pl.Series) -> pl.Series:
    return pl.Series([None if text is None else op_class(text) for text in types], dtype=pl.String)


@lru_cache(maxsize=1)
def _lookup() -> dict[str, str]:
    return {name: cls for cls, names in TABLE.items() for name in names.split()}
