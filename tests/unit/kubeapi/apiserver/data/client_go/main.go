// Records what client-go sends as protobuf: one request for each kind, beside the same object as JSON.
//
// python -m tests.record client-go
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	admission "k8s.io/api/admissionregistration/v1"
	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

type Case struct {
	Name    string          `json:"name"`
	Method  string          `json:"method"`
	Path    string          `json:"path"`
	Content string          `json:"contentType"`
	Accept  string          `json:"accept"`
	Body    string          `json:"body"`
	Object  json.RawMessage `json:"object"`
}

var last Case

func p[T any](v T) *T { return &v }

func main() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		last = Case{Method: r.Method, Path: r.URL.RequestURI(), Content: r.Header.Get("Content-Type"), Accept: r.Header.Get("Accept"), Body: base64.StdEncoding.EncodeToString(raw)}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(404)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404}`)
	}))
	c, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"}})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	at := meta.NewTime(time.Unix(1700000000, 0))
	micro := meta.NewMicroTime(time.Unix(1700000000, 123456000))
	om := meta.ObjectMeta{Name: "n", Namespace: "ns", GenerateName: "g-", Labels: map[string]string{"a": "b", "c": ""}, Annotations: map[string]string{"x": "y"}, Finalizers: []string{"example.org/f"}, UID: types.UID("u-1"), ResourceVersion: "7", Generation: 3, CreationTimestamp: at, DeletionTimestamp: &at, DeletionGracePeriodSeconds: p(int64(0)),
		OwnerReferences: []meta.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "o", UID: "u-2", Controller: p(true), BlockOwnerDeletion: p(false)}},
		ManagedFields:   []meta.ManagedFieldsEntry{{Manager: "m", Operation: "Update", APIVersion: "v1", Time: &at, FieldsType: "FieldsV1", FieldsV1: &meta.FieldsV1{Raw: []byte(`{"f:data":{"f:a":{}}}`)}, Subresource: "status"}}}
	plain := meta.ObjectMeta{Name: "n", Namespace: "ns"}
	ref := core.ObjectReference{Kind: "ConfigMap", Namespace: "ns", Name: "n", UID: "u", APIVersion: "v1", ResourceVersion: "5", FieldPath: "data"}
	var cases []Case
	note := func(name string, obj runtime.Object) {
		copied := obj.DeepCopyObject()
		kinds, _, err := scheme.Scheme.ObjectKinds(copied)
		if err == nil && name != "DeleteOptions" {
			copied.GetObjectKind().SetGroupVersionKind(kinds[0])
		}
		raw, _ := json.Marshal(copied)
		last.Name, last.Object = name, raw
		cases = append(cases, last)
	}
	ns := &core.Namespace{ObjectMeta: om, Spec: core.NamespaceSpec{Finalizers: []core.FinalizerName{"kubernetes"}}, Status: core.NamespaceStatus{Phase: core.NamespaceTerminating, Conditions: []core.NamespaceCondition{{Type: "T", Status: "True", LastTransitionTime: at, Reason: "R", Message: "m"}}}}
	c.CoreV1().Namespaces().Create(ctx, ns, meta.CreateOptions{FieldManager: "m"})
	note("Namespace", ns)
	bare := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "rack-b"}}
	c.CoreV1().Namespaces().Create(ctx, bare, meta.CreateOptions{})
	note("Namespace, bare", bare)
	cm := &core.ConfigMap{ObjectMeta: plain, Data: map[string]string{"a": "1", "b": "", "ü": "ß"}, BinaryData: map[string][]byte{"x": {0, 255}, "e": {}}, Immutable: p(false)}
	c.CoreV1().ConfigMaps("ns").Update(ctx, cm, meta.UpdateOptions{})
	note("ConfigMap", cm)
	c.CoreV1().ConfigMaps("ns").Create(ctx, &core.ConfigMap{ObjectMeta: om}, meta.CreateOptions{})
	note("ConfigMap, metadata", &core.ConfigMap{ObjectMeta: om})
	secret := &core.Secret{ObjectMeta: plain, Data: map[string][]byte{"k": []byte("v")}, StringData: map[string]string{"t": "u"}, Type: "Opaque", Immutable: p(true)}
	c.CoreV1().Secrets("ns").Create(ctx, secret, meta.CreateOptions{})
	note("Secret", secret)
	event := &core.Event{ObjectMeta: plain, InvolvedObject: ref, Reason: "R", Message: "m", Source: core.EventSource{Component: "c", Host: "h"}, FirstTimestamp: at, LastTimestamp: at, Count: 3, Type: "Normal", EventTime: micro, Series: &core.EventSeries{Count: 2, LastObservedTime: micro}, Action: "A", Related: &ref, ReportingController: "rc", ReportingInstance: "ri"}
	c.CoreV1().Events("ns").Create(ctx, event, meta.CreateOptions{})
	note("Event", event)
	old := &core.Event{ObjectMeta: plain, InvolvedObject: ref, Reason: "R", Count: 1}
	c.CoreV1().Events("ns").Create(ctx, old, meta.CreateOptions{})
	note("Event, without times", old)
	fresh := &events.Event{ObjectMeta: plain, EventTime: micro, Series: &events.EventSeries{Count: 2, LastObservedTime: micro}, ReportingController: "rc", ReportingInstance: "ri", Action: "A", Reason: "R", Regarding: ref, Related: &ref, Note: "note", Type: "Normal", DeprecatedSource: core.EventSource{Component: "c", Host: "h"}, DeprecatedFirstTimestamp: at, DeprecatedLastTimestamp: at, DeprecatedCount: 4}
	c.EventsV1().Events("ns").Create(ctx, fresh, meta.CreateOptions{})
	note("events.k8s.io Event", fresh)
	lease := &coordination.Lease{ObjectMeta: plain, Spec: coordination.LeaseSpec{HolderIdentity: p("me"), LeaseDurationSeconds: p(int32(15)), AcquireTime: &micro, RenewTime: &micro, LeaseTransitions: p(int32(0)), Strategy: p(coordination.OldestEmulationVersion), PreferredHolder: p("you")}}
	c.CoordinationV1().Leases("ns").Create(ctx, lease, meta.CreateOptions{})
	note("Lease", lease)
	policy := meta.DeletePropagationForeground
	del := meta.DeleteOptions{GracePeriodSeconds: p(int64(0)), Preconditions: &meta.Preconditions{UID: p(types.UID("u")), ResourceVersion: p("5")}, PropagationPolicy: &policy, DryRun: []string{"All"}}
	c.CoreV1().ConfigMaps("ns").Delete(ctx, "n", del)
	kind := del
	kind.Kind, kind.APIVersion = "DeleteOptions", "v1"
	note("DeleteOptions", &kind)
	none := meta.DeleteOptions{}
	c.CoordinationV1().Leases("ns").Delete(ctx, "n", none)
	none.Kind, none.APIVersion = "DeleteOptions", "coordination.k8s.io/v1"
	note("DeleteOptions", &none)
	ssar := &authz.SelfSubjectAccessReview{Spec: authz.SelfSubjectAccessReviewSpec{ResourceAttributes: &authz.ResourceAttributes{Namespace: "ns", Verb: "get", Group: "g", Version: "v", Resource: "r", Subresource: "s", Name: "n", FieldSelector: &authz.FieldSelectorAttributes{RawSelector: "a=b"}, LabelSelector: &authz.LabelSelectorAttributes{Requirements: []meta.LabelSelectorRequirement{{Key: "k", Operator: "In", Values: []string{"v"}}}}}}}
	c.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, ssar, meta.CreateOptions{})
	note("SelfSubjectAccessReview", ssar)
	path := &authz.SelfSubjectAccessReview{Spec: authz.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authz.NonResourceAttributes{Path: "/healthz", Verb: "get"}}}
	c.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, path, meta.CreateOptions{})
	note("SelfSubjectAccessReview, path", path)
	rules := &authz.SelfSubjectRulesReview{Spec: authz.SelfSubjectRulesReviewSpec{Namespace: "ns"}}
	c.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, rules, meta.CreateOptions{})
	note("SelfSubjectRulesReview", rules)
	sar := &authz.SubjectAccessReview{Spec: authz.SubjectAccessReviewSpec{User: "u", Groups: []string{"g"}, UID: "id", Extra: map[string]authz.ExtraValue{"e": {"1", "2"}}, ResourceAttributes: &authz.ResourceAttributes{Verb: "get", Resource: "r"}}}
	c.AuthorizationV1().SubjectAccessReviews().Create(ctx, sar, meta.CreateOptions{})
	note("SubjectAccessReview", sar)
	local := &authz.LocalSubjectAccessReview{ObjectMeta: meta.ObjectMeta{Namespace: "ns"}, Spec: authz.SubjectAccessReviewSpec{User: "u", ResourceAttributes: &authz.ResourceAttributes{Namespace: "ns", Verb: "get", Resource: "r"}}}
	c.AuthorizationV1().LocalSubjectAccessReviews("ns").Create(ctx, local, meta.CreateOptions{})
	note("LocalSubjectAccessReview", local)
	self := &authn.SelfSubjectReview{}
	c.AuthenticationV1().SelfSubjectReviews().Create(ctx, self, meta.CreateOptions{})
	note("SelfSubjectReview", self)
	token := &authn.TokenReview{Spec: authn.TokenReviewSpec{Token: "t", Audiences: []string{"a"}}}
	c.AuthenticationV1().TokenReviews().Create(ctx, token, meta.CreateOptions{})
	note("TokenReview", token)
	client := admission.WebhookClientConfig{URL: p("https://127.0.0.1/x"), CABundle: []byte("PEM"), Service: &admission.ServiceReference{Namespace: "ns", Name: "s", Path: p("/p"), Port: p(int32(443))}}
	selector := &meta.LabelSelector{MatchLabels: map[string]string{"a": "b"}, MatchExpressions: []meta.LabelSelectorRequirement{{Key: "k", Operator: "In", Values: []string{"v"}}}}
	rule := []admission.RuleWithOperations{{Operations: []admission.OperationType{"CREATE"}, Rule: admission.Rule{APIGroups: []string{"g"}, APIVersions: []string{"v"}, Resources: []string{"r"}, Scope: p(admission.AllScopes)}}}
	vwc := &admission.ValidatingWebhookConfiguration{ObjectMeta: meta.ObjectMeta{Name: "w"}, Webhooks: []admission.ValidatingWebhook{{Name: "a.b.c", ClientConfig: client, Rules: rule, FailurePolicy: p(admission.Fail), MatchPolicy: p(admission.Equivalent), NamespaceSelector: selector, ObjectSelector: selector, SideEffects: p(admission.SideEffectClassNone), TimeoutSeconds: p(int32(5)), AdmissionReviewVersions: []string{"v1"}, MatchConditions: []admission.MatchCondition{{Name: "m", Expression: "true"}}}}}
	c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, vwc, meta.CreateOptions{})
	note("ValidatingWebhookConfiguration", vwc)
	mwc := &admission.MutatingWebhookConfiguration{ObjectMeta: meta.ObjectMeta{Name: "w"}, Webhooks: []admission.MutatingWebhook{{Name: "a.b.c", ClientConfig: client, Rules: rule, FailurePolicy: p(admission.Ignore), MatchPolicy: p(admission.Exact), NamespaceSelector: selector, ObjectSelector: selector, SideEffects: p(admission.SideEffectClassNone), TimeoutSeconds: p(int32(5)), AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: p(admission.IfNeededReinvocationPolicy), MatchConditions: []admission.MatchCondition{{Name: "m", Expression: "true"}}}}}
	c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, mwc, meta.CreateOptions{})
	note("MutatingWebhookConfiguration", mwc)
	out, _ := json.MarshalIndent(cases, "", " ")
	os.Stdout.Write(append(out, '\n'))
}
